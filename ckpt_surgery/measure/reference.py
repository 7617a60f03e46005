"""The run without checkpointing, and whether other runs differ from it by more than noise."""

from __future__ import annotations

import inspect
from functools import cached_property
from typing import Any

from ckpt_surgery.errors import CkptSurgeryError, VerifyError
from ckpt_surgery.measure.compare import Verdict, compare
from ckpt_surgery.measure.given_cache import GivenCache, given_cache
from ckpt_surgery.measure.kinds import CauseKind, FaultKind
from ckpt_surgery.measure.loop import LoopLevel
from ckpt_surgery.measure.noise import NoisyReference, gradient_fault, not_finite
from ckpt_surgery.measure.precision import PrecisionLevel
from ckpt_surgery.measure.record import RunRecord, StepPart
from ckpt_surgery.measure.results import Fault, FaultCause, Level, LevelVerdict, Mode, Skip
from ckpt_surgery.measure.setup import Setup
from ckpt_surgery.model_patches.release_names import CACHE_SWITCH
from ckpt_surgery.text import error_line


class Reference:
    """The run without checkpointing, which every mode is compared with. Made by `run_reference`.

    More such runs are made only where something looks wrong, or a level asks for them, and once each. With
    `before_surgery` the record is of a run before a surgery of the model.
    """

    def __init__(self, setup: Setup, record: RunRecord, *, before_surgery: bool = False) -> None:
        self._setup = setup
        self._before_surgery = before_surgery
        self.record = record
        self._noisy = NoisyReference(self._run, (record,), setup.tolerance)

    @cached_property
    def _loops(self) -> LoopLevel:
        return LoopLevel(self._setup, self.record, self._noisy.rounding)

    @cached_property
    def _precisions(self) -> PrecisionLevel:
        return PrecisionLevel(self._setup)

    def deep_verdict(self, level: Level, mode: Mode, step: RunRecord) -> LevelVerdict:
        """Judge the level loop or precision, whose runs without checkpointing are kept here.

        `step` is one step in this mode.
        """
        return self._loops.verdict(mode, step) if level == "loop" else self._precisions.verdict(mode)

    def verdict(self, run: RunRecord) -> Verdict:
        """Compare a run with the reference: by equal bits, or else by the measured noise."""
        return self._noisy.verdict(0, run)

    @property
    def is_noisy(self) -> bool:
        """Whether the run without checkpointing differs in any bit when it is repeated."""
        return self._noisy.is_noisy

    @cached_property
    def irreproducible(self) -> Fault | None:
        """The fault of a model whose runs without checkpointing differ; None where they agree."""
        first = self._noisy.irreproducible
        if first is None:
            return None
        return Fault(FaultKind.IRREPRODUCIBLE, explanation=FaultCause(CauseKind.OWN_STATE), underlying=first)

    @cached_property
    def changed_by_surgery(self) -> bool:
        """Whether runs without checkpointing agree after the surgery, but not with the one before it."""
        again = self._before_surgery and self.irreproducible and Reference(self._setup, self._setup.run(None))
        return isinstance(again, Reference) and again.irreproducible is None

    @cached_property
    def given_cache(self) -> GivenCache | Skip | None:
        """The run that fills an empty cache, a skip that says why none does, or None where none can be passed."""
        return given_cache(self._setup, self.record)

    def equals_without_cache(self, run: RunRecord) -> bool:
        """Tell whether the model can be told to make no cache, and then computes the same as `run`."""
        if CACHE_SWITCH not in inspect.signature(self._setup.model.forward).parameters:
            return False
        told: dict[str, Any] = {CACHE_SWITCH: False}
        without = self._setup.run(None, **told)
        verdict = compare(without, run, floors=self._noisy.floors(0), tolerance=self._setup.tolerance)
        return gradient_fault(verdict) is None

    def _run(self, rounding_seed: int) -> tuple[RunRecord, ...]:
        return (self._setup.run(None, rounding_seed=rounding_seed),)


def run_reference(setup: Setup) -> Reference:
    """Run once without checkpointing. Raises VerifyError where that run is no reference."""
    name = setup.name
    try:
        record = setup.run(None)
    except CkptSurgeryError:
        raise
    except Exception as error:  # whatever switching checkpointing off, or putting back what the model holds, raises
        raise VerifyError(f"{name} cannot be run with its checkpointing off: {error_line(error)}") from error
    if record.error:
        what = "the loss function" if record.error.part is StepPart.LOSS else "model and inputs"
        raise VerifyError(f"the run of {name} without checkpointing failed: {record.error}; check {what}")
    if problem := not_finite((record,)):
        raise VerifyError(
            f"in the run of {name} without checkpointing {problem}: nothing can be held against it; try other inputs "
            "or float32"
        )
    if not any(gradient is not None for gradient in record.gradients.values()):
        raise VerifyError(f"the loss reaches no parameter of {name}: it needs some that require gradient")
    return Reference(setup, record)
