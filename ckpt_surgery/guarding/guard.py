"""`guard`: watches the checkpointing of one model in the user's own training, and proves it a block at a time.

1. Hooks are on one model, and `remove` takes them off; no parameter, buffer, gradient or random number is changed.
2. In the first steps and then every n-th, what each block was entered is counted. In every step one block's gradients
   are proved, until all are; then in every n-th.
3. Between those steps two hooks run a step, and nothing waits for a device.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Literal

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ckpt_surgery.errors import GuardError, OptionError, SurgeryWarning
from ckpt_surgery.guarding.coverage import Coverage
from ckpt_surgery.guarding.faults import GuardFault, GuardFaultKind
from ckpt_surgery.guarding.memory import BlockMemory, KeptBytes, peaks
from ckpt_surgery.guarding.proof import BlockWitness, GradientProof, ProofStatus
from ckpt_surgery.guarding.ranks import RankGradients
from ckpt_surgery.guarding.report import GuardedBlock, GuardReport
from ckpt_surgery.guarding.second_run import SecondRun
from ckpt_surgery.guarding.steps import StepHooks
from ckpt_surgery.guarding.trained import UntrainedParameters
from ckpt_surgery.measure.switch import blocks_of
from ckpt_surgery.runtime.checkpoint.block_forward import BlockForward
from ckpt_surgery.runtime.surgery.surgery import SURGERY
from ckpt_surgery.runtime.tools.undo import Undoable

FIRST_STEPS = 3
MOST_RETRIES = 20
"""So often a proof is tried again in the next step where it had to be left, for a reason among `RETRIED`."""
RETRIED = (ProofStatus.NOT_FINITE, ProofStatus.NOT_ASKED_FOR)
"""Gradients are inf or nan while a GradScaler finds its scale, and some are not asked for in a step of
`torch.autograd.grad`, such as one that makes adversarial inputs."""

OnFault = Literal["warn", "raise", "collect"]


def guard(
    model: nn.Module,
    *,
    every: int = 100,
    prove: bool = True,
    on_fault: OnFault = "warn",
    patience: int = 20,
) -> Guard:
    """Watch the gradient checkpointing of `model` while it trains, until `remove`; also a context manager.

    `model` is what the training calls: a model of transformers or of another library, also inside
    DistributedDataParallel, with `wrap_blocks` done on it or with its library's own checkpointing. It may be switched
    on before or after this. A step is a forward with gradients and the backward after it; accumulated ones count each.

    Args:
        model: gets two hooks; in checked steps its blocks get some, which go when the step ends.
        every: after the first three steps, check every n-th.
        prove: hold the gradients of one block in each step against those of the block alone without checkpointing,
            until every block was proved, and then in each checked step. The block is run once more for it, in the
            memory of one block.
        on_fault: "warn" gives a SurgeryWarning once for each fault, "raise" raises GuardError at the end of the
            backward (of ranks that disagree, as a later step begins), and "collect" leaves it to `report`.
        patience: after so many steps, parameters that should train and never got a gradient are a fault.

    Returns:
        The guard. Its `report()` says what was seen so far.

    Raises:
        OptionError: a value is none of those above.
        GuardError: the model is compiled, so that its hooks would not run; with `on_fault="raise"`, for a fault.
    """
    if type(every) is not int or every < 1:
        raise OptionError(f"every is {every!r}: give 1 for every step, 100 for every hundredth")
    if type(patience) is not int or patience < 1:
        raise OptionError(f"patience is {patience!r}: give a number of steps, 1 or more")
    if on_fault not in ("warn", "raise", "collect"):
        raise OptionError(f'on_fault is {on_fault!r}: give "warn", "raise" or "collect"')
    if not isinstance(model, nn.Module):
        raise OptionError(f"the model is of type {type(model).__name__}: give a torch.nn.Module")
    wrapper = model if isinstance(model, DistributedDataParallel) else None
    inner = model if wrapper is None else wrapper.module
    for module in inner.modules():
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            raise GuardError(
                f"{type(inner).__name__} is compiled, so that no hook runs in it: guard it without compile"
            )
    return Guard(inner, every=every, prove=prove, on_fault=on_fault, patience=patience, wrapper=wrapper)


class Guard(Undoable):
    """Watches one model until `remove`. Made by `guard`. `steps` counts the steps that it saw to their end.

    `at_end` is called with the guard as it goes, with its model, so that its report can be kept.
    """

    at_end: Callable[[Guard], None] | None = None

    def __init__(
        self,
        model: nn.Module,
        *,
        every: int,
        prove: bool,
        on_fault: OnFault,
        patience: int,
        wrapper: DistributedDataParallel | None = None,
    ) -> None:
        self.model = model
        self.steps = 0
        self._every = every
        self._prove = prove
        self._on_fault: OnFault = on_fault
        self._coverage: Coverage | None = None
        self._witness: BlockWitness | None = None
        self._second: SecondRun | None = None
        self._memory: BlockMemory | None = None
        self._kept: dict[str, KeptBytes] = {}
        self._peaks: dict[str, int] = {}
        self._counts: dict[str, tuple[int, int]] = {}
        self._proofs: dict[str, GradientProof] = {}
        self._tried = 0
        self._retries = 0
        self._all_proved = False
        self._faults: dict[tuple[GuardFaultKind, tuple[str, ...]], GuardFault] = {}
        self._untrained = UntrainedParameters(model, patience)
        self._wrapper = wrapper
        self._ranks: RankGradients | None = None
        self._hooks = StepHooks(
            model,
            begin=self._begin,
            aside=self._set_aside,
            backward=self._start_backward,
            end=self._end,
            abandon=self._abandon,
        )

    def __del__(self) -> None:
        if self.at_end is not None and not sys.is_finalizing():
            with suppress(Exception):  # nobody could catch it
                self.at_end(self)

    def begin_within(self) -> None:
        """Begin with the step whose forward is running already: to be called in it, before a block runs."""
        self._hooks.begin_within()

    def report(self) -> GuardReport:
        """What was seen so far."""
        blocks = blocks_of(self.model)
        rows = tuple(
            GuardedBlock(
                name,
                type(block.module).__name__,
                self._counts.get(name),
                self._proofs.get(name, GradientProof(name, ProofStatus.NOT_YET)),
                self._kept.get(name),
            )
            for name, block in blocks.items()
            if not block.inside
        )
        self._note(self._rank_faults())
        compared = self._ranks.compared if self._ranks is not None else 0
        forwards = (vars(block.module).get("forward") for block in blocks.values())
        stats = getattr(vars(self.model).get(SURGERY), "stats", None)
        return GuardReport(
            type(self.model).__name__,
            self.steps,
            rows,
            tuple(self._faults.values()),
            ranks_compared=compared,
            fingerprints=sum(f.schedule.checked for f in forwards if isinstance(f, BlockForward)),
            offloaded_bytes=stats.bytes if stats is not None else 0,
            without_gradient=self._untrained.without,
            peak_bytes=dict(self._peaks),
        )

    def remove(self) -> None:
        """Take every hook off. A second call does nothing."""
        self._hooks.remove()
        self._untrained.remove()
        if self._ranks is not None:
            self._ranks.disarm()
        self._undone = True

    def undo(self) -> None:
        """The same as `remove`."""
        self.remove()

    def _begin(self) -> None:
        if not self.steps and self._ranks is None:
            self._ranks = RankGradients.of(self.model, self._wrapper)
        self._tell(self._rank_faults())
        checked = self._is_checked()
        if checked and self._ranks is not None:
            self._ranks.arm(self.steps)
        if not (checked or (self._prove and not self._all_proved)):  # to look for blocks takes longer than the rest
            self._untrained.begin()
            return
        blocks = {name: block.module for name, block in blocks_of(self.model).items() if not block.inside}
        if not blocks:
            return
        self._second = SecondRun(self.model, blocks)
        if checked:
            self._coverage = Coverage(self.model, blocks)
            self._memory = BlockMemory(blocks)
        unproved = [name for name in blocks if self._is_to_prove(name)]
        self._all_proved = not unproved
        if self._prove and (unproved or checked):
            names = unproved or list(blocks)
            name = names[self._tried % len(names)]
            self._tried += not unproved
            proofs = self._proofs.values()
            cutting = {
                p.name: blocks[p.name] for p in proofs if p.status is ProofStatus.HANDS_ON_CUT and p.name in blocks
            }
            cutting.pop(name, None)
            self._witness = BlockWitness(name, blocks[name], _own_parameters(self.model, blocks, name), cutting)
        self._untrained.begin()

    def _is_checked(self) -> bool:
        return self.steps < FIRST_STEPS or self.steps % self._every == 0

    def _is_to_prove(self, name: str) -> bool:
        """Whether a block's proof is still to come."""
        proof = self._proofs.get(name)
        return proof is None or (proof.status in RETRIED and self._retries < MOST_RETRIES)

    def _set_aside(self, aside: bool) -> None:
        if self._coverage is not None:
            self._coverage.set_aside(aside)
        if self._witness is not None:
            self._witness.set_aside(aside)

    def _start_backward(self) -> None:
        if self._coverage is not None:
            self._coverage.start_backward()
        if self._memory is not None:
            self._memory.start_backward()
        if self._witness is not None:
            self._witness.start_backward()
        if self._second is not None:
            self._second.start_backward()

    def _end(self) -> None:
        checked = self._is_checked()
        self.steps += 1
        faults: list[GuardFault] = []
        again = self._end_second()
        coverage, self._coverage = self._coverage, None
        if coverage is not None:
            coverage.remove()
        if coverage is not None and not again:
            self._counts.update(coverage.counts())
            faults += coverage.faults()
        self._end_memory()
        witness, self._witness = self._witness, None
        if witness is not None:
            proof = witness.end() if not again else witness.leave_out()
            before = self._proofs.get(proof.name)
            if before is None or not before.judged or proof.judged:  # a later step may say less, as with layer drop
                self._proofs[proof.name] = proof
            self._retries += proof.status in RETRIED
            if proof.status is ProofStatus.WRONG:
                subjects = (proof.name, *proof.errors)
                faults.append(GuardFault(GuardFaultKind.WRONG_GRADIENTS, subjects, error=max(proof.errors.values())))
            for maker in proof.uses_cut_of:
                subjects = (maker, *self._proofs[maker].cut)
                faults.append(GuardFault(GuardFaultKind.CUT_GRADIENTS, subjects, used_by=proof.name))
        faults += self._untrained.end(look=checked)
        self._tell(faults)

    def _abandon(self) -> None:
        if self._coverage is not None:
            self._coverage.remove()
        if self._witness is not None:
            self._witness.give_up()
        self._coverage = self._witness = None
        self._end_second()
        self._end_memory()

    def _end_second(self) -> bool:
        """Whether the model ran a second time in the backward."""
        second, self._second = self._second, None
        if second is not None:
            second.remove()
        return second is not None and second.seen

    def _end_memory(self) -> None:
        memory, self._memory = self._memory, None
        if memory is not None:
            self._kept.update(memory.end())
            self._peaks.update(peaks(self.model))

    def _rank_faults(self) -> list[GuardFault]:
        """What the ranks show, each kind once: the sampled parameters are others in each step."""
        faults = [] if self._ranks is None else self._ranks.collect()
        known = {kind for kind, _ in self._faults}
        return [fault for fault in faults[:1] if fault.kind not in known]

    def _note(self, faults: list[GuardFault]) -> list[GuardFault]:
        """Those that are new."""
        new = [fault for fault in faults if (fault.kind, fault.subjects) not in self._faults]
        self._faults.update({(fault.kind, fault.subjects): fault for fault in new})
        return new

    def _tell(self, seen: list[GuardFault]) -> None:
        faults = self._note(seen)
        for fault in faults:
            if self._on_fault == "warn":
                warnings.warn(f"{type(self.model).__name__}: {fault}", SurgeryWarning, stacklevel=2)
        if faults and self._on_fault == "raise":
            raise GuardError(f"{type(self.model).__name__}: {faults[0]}")


def _own_parameters(model: nn.Module, blocks: Mapping[str, nn.Module], name: str) -> dict[str, nn.Parameter]:
    """The parameters of a block that nothing else in the model holds."""
    holders: Counter[int] = Counter()
    for module in model.modules():
        holders.update({id(p) for p in module.parameters(recurse=False)})
    return {path: parameter for path, parameter in blocks[name].named_parameters() if holders[id(parameter)] == 1}
