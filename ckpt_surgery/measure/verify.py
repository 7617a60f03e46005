"""Whether checkpointing works on one model: every mode next to a run without, level by level.

The measuring is `probe`, the judging `compare`, the explaining `causes`; this puts them together.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

from torch import Tensor, nn

from ckpt_surgery.codemods.rules import unreachable_checkpointing
from ckpt_surgery.errors import VerifyError
from ckpt_surgery.measure.arguments import (
    Levels,
    checked_inputs,
    checked_levels,
    checked_model,
    checked_modes,
    checked_tolerance,
)
from ckpt_surgery.measure.causes import USES_NO_CACHE, Case, explain
from ckpt_surgery.measure.compare import Verdict, all_gradients, cache_faults, compare, noise_floors
from ckpt_surgery.measure.ranks import RanksVerdict, first_problem, judge_ranks, unwrapped
from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import LEVELS, MODES, BlockCount, Fault, Level, Mode, ModeReport, Outcome
from ckpt_surgery.measure.step import RunRecord, run_step
from ckpt_surgery.measure.versions import installed_versions
from ckpt_surgery.runtime.call_arguments import is_cache
from ckpt_surgery.runtime.discovery import find_blocks
from ckpt_surgery.runtime.wrap import wrap_blocks

_ROUNDINGS = (1, 2)  # a single one hits the same bits in a gradient of few elements now and then
_OTHER = "The model draws from a generator of its own or keeps something from run to run: nothing can be compared."


def verify(
    model: nn.Module,
    inputs: Mapping[str, Any],
    *,
    loss: Callable[[Any], Tensor] | None = None,
    modes: Mode | Sequence[Mode] = MODES,
    levels: Levels = "all",
    seed: int = 0,
    tolerance: float | None = None,
) -> Report:
    """Prove that gradient checkpointing works on `model`, or say what it does wrong.

    One training step without checkpointing is the reference; one per mode is held against it: the same model,
    seed and inputs. Afterwards the model is as it was: values, buffers, gradients, generators, training mode,
    hooks and flags. `model` is any module in training mode with `gradient_checkpointing_enable` (or the
    later `activation_checkpointing_enable`), on any device but meta; `inputs` are the keyword arguments of
    its forward. `loss` turns the output into a scalar (default: the output's own loss, else a weighted sum of every
    float tensor in it). `levels` are those of `results.LEVELS` to judge. `tolerance` is the largest relative error
    of a gradient; by default the square root of the dtype's eps.

    A model that says it does not support checkpointing and yet holds checkpointing layers is examined too, as
    if it did: its report is marked and never `ok`. One without such layers gets no verdict.

    Parameters that are zero, or nearly, get small random values for the time of the step, so that a closed gate
    hides nothing. Costs one step per mode and one for the reference, and one copy of parameters and buffers;
    up to four more steps where something looks wrong or a cache can be given. There is no limit on the time: a
    backward that never ends (WavLM, reentrant) never returns; `ckpt_surgery verify` has limits. `model` may be a
    `DistributedDataParallel`: in an initialised process group the level "ranks" compares the ranks, and every
    rank has to call this; see `ranks`.

    Raises VerifyError, with one sentence, where no verdict is possible: a model in evaluation mode, on meta, or
    without a method to switch checkpointing on, inputs that do not fit, a loss that needs no gradient, or NaN.
    """
    examination = Examination(model, inputs, loss=loss, levels=levels, seed=seed, tolerance=tolerance)
    return examination.run(modes)


class Examination:
    """One model with one set of inputs: the reference first, then any mode next to it.

    For those who want each result when it is there, and a limit on the time of each; `verify` does it all.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Mapping[str, Any],
        *,
        loss: Callable[[Any], Tensor] | None = None,
        levels: Levels = "all",
        seed: int = 0,
        tolerance: float | None = None,
    ) -> None:
        self._given = model
        self._model = checked_model(unwrapped(model))
        self._inputs = checked_inputs(inputs)
        self._loss = loss
        self._seed = seed
        self._tolerance = checked_tolerance(tolerance)
        self._levels = checked_levels(levels)
        self._blocks = {block.name: block for block in find_blocks(self._model)}
        self._reference: RunRecord | None = None
        self._seconds: dict[str, float] = {}

    def run(self, modes: Mode | Iterable[Mode] = MODES) -> Report:
        """The reference and every mode of `modes`."""
        wanted = checked_modes(modes)
        report = self._agreed_reference()
        found = () if report.problem else tuple(self.examine(mode) for mode in wanted)
        return _with_modes(report, found)

    def _agreed_reference(self) -> Report:
        """The reference, once every rank has one. Raises VerifyError on each where one has none."""
        report, problem = None, ""
        try:
            report = self.reference()
        except VerifyError as error:
            problem = str(error)
        if "ranks" in self._levels:
            problem = first_problem(self._given, problem)
        if report is None or problem:
            raise VerifyError(problem)
        return report

    def reference(self) -> Report:
        """Run without checkpointing, for a report without modes. Raises VerifyError where that run is no reference."""
        started = time.perf_counter()
        supported = bool(getattr(self._model, "supports_gradient_checkpointing", True))
        name = type(self._model).__name__
        layers = any(block.kind == "layer" for block in self._blocks.values())
        if self._reference is None and (supported or layers):
            self._reference = self._step(None)
            self._check_reference(self._reference)
            self._seconds["reference"] = time.perf_counter() - started
        return Report(
            model=name,
            model_type=str(getattr(getattr(self._model, "config", None), "model_type", "") or ""),
            dtype=str(next((p.dtype for p in self._model.parameters()), "")).removeprefix("torch."),
            parameters=sum(p.numel() for p in self._model.parameters()),
            versions=installed_versions(),
            reference=self._reference.timeline if self._reference else None,
            problem="" if self._reference else f"{name} says that it does not support gradient checkpointing",
            supported=supported,
            seconds=dict(self._seconds),
        )

    def repaired(self) -> tuple[Examination, str]:
        """Do `wrap_blocks` on the model: what to examine it with from then on, and the table of the surgery.

        It is held against the run of the model as it was, where there was one and the blocks are the same; else
        against one of its own. Raises SurgeryError where the surgery cannot be done, VerifyError where there is no
        run to hold it against.
        """
        surgery = wrap_blocks(self._model)
        levels, seed, tolerance = self._levels, self._seed, self._tolerance
        after = Examination(self._given, self._inputs, loss=self._loss, levels=levels, seed=seed, tolerance=tolerance)
        if self._reference is not None and after._blocks.keys() == self._blocks.keys():
            after._reference = self._reference
            return after, str(surgery)
        if problem := after.reference().problem:
            raise VerifyError(problem)
        if after._other_reference:
            name = type(self._model).__name__
            raise VerifyError(f"two runs of {name} without checkpointing differ: nothing can be compared")
        return after, str(surgery)

    def examine(self, mode: Mode) -> ModeReport:
        """Run with checkpointing in this mode, next to the reference (which is run first where it was not)."""
        if self._reference is None:
            report = self.reference()
            if report.problem:
                raise VerifyError(report.problem)
        reference = cast(RunRecord, self._reference)
        started = time.perf_counter()
        case = Case(self._model, self._blocks, reference, mode)
        try:
            run = self._step(mode)
        except Exception as error:  # whatever the method to switch it on raises is the finding
            text = " ".join(f"{type(error).__name__}: {error}".split())
            return self._broken_off(mode, reference, Fault("run", "checkpointing that can be switched on", text))
        if run.refused and mode == "reentrant":
            return self._refusal(mode, reference, run)
        verdict = self._verdict(reference, run)
        if not verdict.ok and (other := self._other_reference):
            fault = Fault("run", "two equal runs without checkpointing", other, cause=_OTHER)
            return self._broken_off(mode, reference, fault)
        of_cache, notes = self._look_at_cache(case, run)
        found = [*verdict.faults, *self._block_faults(run)]
        faults = [*self._without_cache(explain(found, case), run), *of_cache]
        kept = [fault for fault in faults if fault.level == "run" or fault.level in self._levels]
        ranks = self._ranks(mode, reference, kept)
        ended, whole = run.error is None, not verdict.lost
        return ModeReport(
            mode=mode,
            faults=(*kept, *ranks.faults),
            outcomes=self._outcomes([*kept, *ranks.faults], ended=ended, whole=whole, ranks=ranks.measured),
            notes=tuple(filter(None, [*notes, self._no_blocks, ranks.note])),
            blocks=self._counts(reference, run),
            errors=verdict.errors or {},
            cost=verdict.cost,
            timeline=run.timeline,
            seconds=time.perf_counter() - started,
        )

    def _refusal(self, mode: Mode, reference: RunRecord, run: RunRecord) -> ModeReport:
        """A mode in which a surgery refuses a call, rather than get it wrong; the other ranks hear of no fault."""
        faults = self._ranks(mode, reference, ()).faults
        outcomes = {**self._outcomes(faults, ended=False), "run": "skipped"}
        return ModeReport(mode, faults, outcomes, refused=run.refused)

    def _broken_off(self, mode: Mode, reference: RunRecord, fault: Fault) -> ModeReport:
        """A mode of which nothing else is known; the other ranks wait to hear of it."""
        faults = (fault, *self._ranks(mode, reference, [fault]).faults)
        return ModeReport(mode, faults, self._outcomes(faults, ended=False))

    def _ranks(self, mode: Mode, reference: RunRecord, faults: Sequence[Fault]) -> RanksVerdict:
        """What comes of the ranks together; each has to ask, whatever its own faults are."""
        if "ranks" not in self._levels:
            return RanksVerdict()

        def step(model: nn.Module) -> RunRecord:
            return self._step(mode, model=model)

        return judge_ranks(self._given, mode, reference, faults, step, tolerance=self._tolerance)

    def _step(
        self, mode: Mode | None, *, rounded_otherwise: int = 0, model: nn.Module | None = None, **more: Any
    ) -> RunRecord:
        with _claiming(self._model):
            return run_step(
                self._model if model is None else model,
                {**self._inputs, **more},
                blocks={name: block.module for name, block in self._blocks.items()} if model is None else {},
                checkpointing=mode,
                seed=self._seed,
                loss=self._loss,
                open_gates=True,
                rounded_otherwise=rounded_otherwise,
            )

    def _verdict(self, reference: RunRecord, run: RunRecord) -> Verdict:
        """The verdict without any noise floor where nothing is wrong then, and with the measured one otherwise."""
        strict = compare(reference, run, floors={}, tolerance=self._tolerance)
        if not (strict.lost or strict.gained or strict.wrong):
            return strict
        return compare(reference, run, floors=self._noise, tolerance=self._tolerance)

    @cached_property
    def _noise(self) -> dict[str, float]:
        reference = cast(RunRecord, self._reference)
        repeated = [self._step(None, rounded_otherwise=seed) for seed in _ROUNDINGS]
        return noise_floors(reference, *(run for run in repeated if not run.error))

    @cached_property
    def _other_reference(self) -> str:
        """What differs when the run without checkpointing is repeated; empty where nothing does."""
        verdict = compare(cast(RunRecord, self._reference), self._step(None), floors={}, tolerance=self._tolerance)
        first = next((f for f in verdict.faults if f.level in ("run", "set", "values")), None)
        return "" if first is None else f"{first.seen} after {first.expected}"

    def _without_cache(self, faults: Sequence[Fault], run: RunRecord) -> Sequence[Fault]:
        """The same faults; wrong gradients that nothing else explains may be those of a run with its cache off."""
        wrong = [fault for fault in faults if fault.level in ("set", "values") and not fault.cause]
        if not wrong or "use_cache" not in inspect.signature(self._model.forward).parameters:
            return faults
        verdict = compare(self._step(None, use_cache=False), run, tolerance=self._tolerance)
        if any(fault.level in ("run", "set", "values") for fault in verdict.faults):
            return faults
        return [replace(fault, cause=USES_NO_CACHE) if fault in wrong else fault for fault in faults]

    def _check_reference(self, run: RunRecord) -> None:
        name = type(self._model).__name__
        if run.error:
            what = "the loss function" if run.error.startswith("loss ") else "model and inputs"
            raise VerifyError(f"the run of {name} without checkpointing failed: {run.error}; check {what}")
        if not math.isfinite(run.loss):
            raise VerifyError(
                f"the loss of {name} without checkpointing is {run.loss}: nothing can be held against it"
            )
        for parameter, gradient in all_gradients(run).items():
            if gradient is not None and not bool(gradient.isfinite().all()):
                raise VerifyError(
                    f"the gradient of {parameter} holds NaN or infinity in the run of {name} without checkpointing: "
                    "try other inputs or float32"
                )
        if not any(gradient is not None for gradient in run.gradients.values()):
            raise VerifyError(f"the loss reaches no parameter of {name}: it needs some that require gradient")

    def _block_faults(self, run: RunRecord) -> list[Fault]:
        saves = run.kept_bytes < cast(RunRecord, self._reference).kept_bytes  # in a block that is no stack
        if self._blocks or run.error or not self._claims or saves:
            return []
        rule = unreachable_checkpointing.RULE.code
        return [Fault("recompute", "blocks to checkpoint", "none in this model", rule=rule)]

    @property
    def _claims(self) -> bool:
        """Whether the model is one of transformers that says it supports checkpointing."""
        return bool(getattr(self._model, "supports_gradient_checkpointing", False))

    @property
    def _no_blocks(self) -> str:
        return "" if self._blocks else "No stack of blocks was found: recomputes were not counted."

    def _look_at_cache(self, case: Case, run: RunRecord) -> tuple[Sequence[Fault], Sequence[str]]:
        """What becomes of a cache that is given explicitly, where the model takes one and the inputs have none."""
        parameters = inspect.signature(self._model.forward).parameters
        wanted = "past_key_values" in parameters and not any(map(is_cache, self._inputs.values()))
        if "state" not in self._levels or not wanted or run.error:
            return (), ()
        cache = _empty_cache(self._model)
        given = None if cache is None else self._step(case.mode, past_key_values=cache)
        if given is None or given.error or "past_key_values" not in given.cache:
            why = f": {given.error}" if given and given.error else ""
            return (), [f"What becomes of a cache in past_key_values was not tried{why}."]
        faults = cache_faults(given)
        if not faults:
            return (), ()
        shown = self._step(None, past_key_values=_empty_cache(self._model))
        return explain(faults, replace(case, reference=shown)), ()

    def _outcomes(
        self, faults: Sequence[Fault], *, ended: bool, whole: bool = True, ranks: bool = False
    ) -> dict[Level, Outcome]:
        """What became of each level; a backward that is not `whole` has no cost to compare."""
        failed = {fault.level for fault in faults}
        outcomes: dict[Level, Outcome] = {}
        whole = whole and bool(self._blocks)
        for level in LEVELS:
            measured = level == "run" or (
                ended
                and level in self._levels
                and (ranks or level != "ranks")
                and (whole or level != "cost")
                and (self._blocks or level != "recompute")
            )
            outcomes[level] = "failed" if level in failed else "ok" if measured else "skipped"
        return outcomes

    def _counts(self, reference: RunRecord, run: RunRecord) -> tuple[BlockCount, ...]:
        return tuple(
            BlockCount(name, block.kind, reference.entries[name].forward, seen.forward, seen.backward)
            for name, block in self._blocks.items()
            if (seen := run.entries.get(name)) is not None
        )


@contextmanager
def _claiming(model: nn.Module) -> Iterator[None]:
    """Let a model that says it does not support checkpointing switch it on all the same."""
    if getattr(model, "supports_gradient_checkpointing", True):
        yield
        return
    own = {k: v for k, v in vars(model).items() if k == "supports_gradient_checkpointing"}
    vars(model)["supports_gradient_checkpointing"] = True
    try:
        yield
    finally:
        vars(model).pop("supports_gradient_checkpointing")
        vars(model).update(own)


def _with_modes(report: Report, modes: tuple[ModeReport, ...]) -> Report:
    return replace(report, modes=modes, seconds={**report.seconds, **{mode.mode: mode.seconds for mode in modes}})


def _empty_cache(model: nn.Module) -> Any:
    """An empty cache for the model's own configuration; None where none can be made."""
    try:
        import transformers

        return transformers.DynamicCache(config=getattr(model, "config", None))
    except Exception:
        return None
