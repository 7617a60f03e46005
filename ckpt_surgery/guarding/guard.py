"""`guard`: watch the checkpointing of one model in the user's own training, and prove it a block at a time.

1. Hooks are on one model, and `remove` takes them off; no parameter, buffer, gradient or random number is changed.
2. The first steps, and then every n-th, count how often each block is entered. Every step proves one block's gradients
   until all are proved; then every n-th does.
3. Between those steps two hooks run a step, and nothing waits for a device.
4. An error in one of the guard's hooks ends the watch, not the training.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Literal
from weakref import ref

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ckpt_surgery.errors import GuardError, OptionError, SurgeryWarning
from ckpt_surgery.guarding.coverage import OwnBlocks
from ckpt_surgery.guarding.failed_step import FailedStep, LastCall
from ckpt_surgery.guarding.faults import GuardFault, GuardFaultKind
from ckpt_surgery.guarding.ranks import RankGradients
from ckpt_surgery.guarding.report import STOPPED, GuardReport
from ckpt_surgery.guarding.results import CheckedStep, GuardResults
from ckpt_surgery.guarding.steps import StepHooks, StepWatch
from ckpt_surgery.guarding.torch_errors import WatchedModel, explain
from ckpt_surgery.guarding.trained import UntrainedParameters, faulty_branches
from ckpt_surgery.measure.model_hook import HookErrors
from ckpt_surgery.measure.surgical_blocks import blocks_of, has_surgery
from ckpt_surgery.runtime.blocks.discovery import compiled_place, enclosing, nearest
from ckpt_surgery.runtime.checkpoint.block_forward import BlockForward
from ckpt_surgery.runtime.surgery.surgery import SURGERY
from ckpt_surgery.text import error_line
from ckpt_surgery.torch_names import is_compiled
from ckpt_surgery.undo import Undoable

FIRST_STEPS = 3  # these are checked in any case

OnFault = Literal["warn", "raise", "collect"]


@dataclass(frozen=True, slots=True)
class GuardOptions:
    """The options of `guard`. Raises OptionError for a value that `guard` does not take."""

    every: int = 100
    prove: bool = True
    on_fault: OnFault = "warn"
    patience: int = 20

    def __post_init__(self) -> None:
        if type(self.every) is not int or self.every < 1:
            raise OptionError(f"every is {self.every!r}: give 1 for every step, 100 for every hundredth")
        if type(self.patience) is not int or self.patience < 1:
            raise OptionError(f"patience is {self.patience!r}: give a number of steps, 1 or more")
        if self.on_fault not in ("warn", "raise", "collect"):
            raise OptionError(f'on_fault is {self.on_fault!r}: give "warn", "raise" or "collect"')


def guard(
    model: nn.Module, *, every: int = 100, prove: bool = True, on_fault: OnFault = "warn", patience: int = 20
) -> Guard:
    """Watch the gradient checkpointing of `model` while it trains, until `remove`; also a context manager.

    A step is a forward with gradients and the backward after it; with gradient accumulation each one counts. If the
    guard itself fails, it gives a SurgeryWarning and stops watching; the training goes on.

    Args:
        model: the module that the training calls: a model of transformers or of another library, also inside
            DistributedDataParallel, with `wrap_blocks` or with its library's own checkpointing, switched on before or
            after this call. It gets two hooks; in checked steps its blocks get some more, which go when the step ends.
        every: after the first three steps, check every n-th, and the first one in another mode.
        prove: compare the gradients of one block in each step with those of the block alone without checkpointing,
            until every block is proved, and then in each checked step. The block runs once more for that, in the
            memory of one block.
        on_fault: "warn" gives a SurgeryWarning once for each fault, "raise" raises GuardError at the end of the
            backward (for ranks that disagree, as a later step begins), and "collect" leaves faults to `report`.
        patience: the number of steps after which parameters that should train and never got a gradient are a fault.

    Returns:
        The guard. Its `report()` says what was seen so far.

    Raises:
        OptionError: a value is not one of those above.
        GuardError: the model is compiled, so that its hooks would not run; with `on_fault="raise"`, also for a fault.
    """
    return Guard(model, GuardOptions(every, prove, on_fault, patience))


class Guard(Undoable):
    """Watches one model until `remove`. Made by `guard`. `steps` counts the completed steps.

    `at_check` is called at the end of each checked step, and `at_end` with the guard when it is garbage-collected
    together with its model, so that its report can be kept. If an error in the guard itself ends the watch, `say` is
    called, and `failure` is that error on one line.
    """

    at_check: Callable[[], None] | None = None
    at_end: Callable[[Guard], None] | None = None
    failure = ""

    def __init__(self, model: nn.Module, options: GuardOptions, say: Callable[[str], None] | None = None) -> None:
        if not isinstance(model, nn.Module):
            raise OptionError(f"the model is of type {type(model).__name__}: give a torch.nn.Module")
        self._wrapper = model if isinstance(model, DistributedDataParallel) else None
        self.model: nn.Module = model if self._wrapper is None else self._wrapper.module
        name = type(self.model).__name__
        compiled = any(map(is_compiled, self.model.modules()))
        if compiled and (place := compiled_place(self.model, blocks_of(self.model))) is not None:
            raise GuardError(f"{name} is compiled{place}, so that no hook runs in it: guard it without compile")
        self.steps = 0
        self._was_evaluating = False
        self._options = options
        self._results = GuardResults()
        self._own: dict[str, nn.Module] = {}  # what the script checkpoints by itself
        self._ran: set[str] = set()
        self._begun_within = False
        self._untrained = UntrainedParameters(self.model, options.patience)
        self._ranks: RankGradients | None = None
        self._step: CheckedStep | None = None
        self._say = say or self._warn
        # hooks in a graph must not hold the guard: it holds what it has seen, and that holds the graph
        self._errors = HookErrors(partial(self._stop, ref(self)), (GuardError, Warning))
        self._hooks = StepHooks(self.model, self._begin, self._end, self._errors)

    def __del__(self) -> None:
        if self.at_end is not None and not sys.is_finalizing():
            with suppress(Exception):  # nothing can catch it here
                self.at_end(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            with suppress(Exception):
                explain(error, [self.watched()])
            with suppress(Exception):
                if failed := FailedStep.of(error, [LastCall(self.model)]):
                    error.add_note(f"ckpt_surgery: {failed.sentence}")
        super().__exit__(kind, error, trace)

    def watched(self) -> WatchedModel:
        """Return the model with what the latest step showed, for an error that ends it."""
        return WatchedModel(self.model, None if self._step is None else self._step.looks)

    @property
    def proving(self) -> str:
        """The block whose proof is running; empty if none is."""
        return "" if self._step is None else self._step.proving

    def begin_within(self) -> None:
        """Begin with a step whose forward is already running. Call this in it, before a block runs."""
        self._begun_within = True
        with self._errors.kept():
            self._hooks.before(self.model)

    def report(self) -> GuardReport:
        """Return what was seen so far, at any time, even after `remove`.

        Returns:
            The blocks with their recomputes, proofs and memory in bytes, and the faults. Print it for a table.
        """
        results = self._results
        with self._errors.kept():
            results.add_faults(self._rank_faults())
        outer = {name: type(block).__name__ for name, block in self._blocks().items()}
        forwards = (vars(block.module).get("forward") for block in blocks_of(self.model).values())
        stats = getattr(vars(self.model).get(SURGERY), "stats", None)
        by_library = [name for name in outer if results.counts.get(name, (0, 0))[1] and not has_surgery(self.model)]
        return GuardReport(
            type(self.model).__name__,
            self.steps,
            tuple(results.of_block(name, block_class) for name, block_class in outer.items()),
            results.all_faults(),
            ranks_compared=self._ranks.compared if self._ranks is not None else 0,
            fingerprints=sum(f.schedule.compared for f in forwards if isinstance(f, BlockForward)),
            offloaded_bytes=stats.bytes if stats is not None else 0,
            without_gradient=self._untrained.without,
            branches=faulty_branches(self.model, by_library, self._untrained.without),
            unwatched=self._untrained.flattened,
            peak_bytes=dict(results.peaks),
            failure=self.failure,
        )

    def remove(self) -> None:
        """Remove every hook from the model, and abandon a step that has begun. A second call does nothing."""
        self._hooks.undo()
        self._untrained.remove()
        if self._ranks is not None:
            self._ranks.undo()
        self._undone = True

    undo = remove
    """Do what `remove` does."""

    @staticmethod
    def _stop(guard: ref[Guard], error: Exception) -> bool:
        """Stop a guard whose own hook has failed, so that the training goes on without it.

        If memory ran out in a proof, only the proof is dropped, and the result is True.
        """
        if (failed := guard()) is None:
            return False
        if isinstance(error, torch.OutOfMemoryError) and failed._step is not None and failed._step.give_proof_up():
            return True
        failed.failure = error_line(error)
        with suppress(Exception):  # hooks that are left do nothing any more
            failed.remove()
        failed._say(f"{type(failed.model).__name__}: {STOPPED.format(failed.failure)}")
        return False

    def _blocks(self) -> dict[str, nn.Module]:
        """Return the blocks to watch: those of the model, and what the script checkpoints beside or inside them."""
        found = [block for block in blocks_of(self.model).values() if not block.inside]
        certain = [b for b in found if b.kind == "layer" or isinstance(vars(b.module).get("forward"), BlockForward)]
        around_own = {outer for name in self._own for outer in enclosing(name)}
        blocks = {block.name: block.module for block in found if block in certain or block.name not in around_own}
        around_blocks = {outer for name in blocks for outer in enclosing(name)}
        beside = {n: m for n, m in self._own.items() if not nearest(n, blocks) and n not in around_blocks}
        return blocks | beside

    def _begin(self) -> StepWatch:
        if not self.steps and self._ranks is None:
            self._ranks = RankGradients.of(self.model, self._wrapper)
        self._report_new(self._rank_faults())
        checked = self._is_checked()
        if checked and self._ranks is not None:
            self._ranks.arm(self.steps)
        watch, self._step = StepWatch(), None
        if checked or (self._options.prove and not self._results.complete):  # finding the blocks takes longest
            blocks = self._blocks()
            if not blocks:
                return OwnBlocks(self.model) if checked else watch
            to_prove = self._results.next_to_prove(blocks, checked=checked) if self._options.prove else None
            watch = self._step = CheckedStep(self.model, blocks, self._results, checked=checked, to_prove=to_prove)
        self._untrained.begin()
        return watch

    def _is_checked(self) -> bool:
        first = self.steps < FIRST_STEPS or self._hooks.evaluating is not self._was_evaluating
        return first or self.steps % self._options.every == 0

    def _end(self, watch: StepWatch) -> None:
        checked = self._is_checked()
        if checked and self.at_check is not None:
            self.at_check()
        self.steps += 1
        self._was_evaluating = self._hooks.evaluating
        faults = watch.end(follows_forward=self._hooks.follows_forward) if isinstance(watch, CheckedStep) else []
        if self._begun_within:  # an earlier forward, which nobody watched, may have a part in this backward
            faults = [fault for fault in faults if fault.kind is not GuardFaultKind.RECOMPUTED_AGAIN]
            self._begun_within = False
        own = watch.own if isinstance(watch, CheckedStep) else watch
        if isinstance(own, OwnBlocks):
            self._own |= own.found
            self._ran |= own.ran
        self._report_new([*faults, *self._untrained.end(self._ran, look=checked)])

    def _rank_faults(self) -> list[GuardFault]:
        """Return the faults between ranks, each kind once: every step samples other parameters."""
        faults = [] if self._ranks is None else self._ranks.collect()
        reported = {kind for kind, _ in self._results.faults}
        return [fault for fault in faults[:1] if fault.kind not in reported]

    @staticmethod
    def _warn(message: str) -> None:
        warnings.warn(message, SurgeryWarning, stacklevel=2)

    def _report_new(self, seen: Iterable[GuardFault]) -> None:
        faults = self._results.add_faults(seen)
        for fault in faults if self._options.on_fault == "warn" else ():
            self._warn(f"{type(self.model).__name__}: {fault}")
        if faults and self._options.on_fault == "raise":
            raise GuardError(f"{type(self.model).__name__}: {faults[0]}")
