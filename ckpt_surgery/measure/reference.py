"""The run without checkpointing, and whether another run differs from it by more than noise."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from functools import cached_property

from ckpt_surgery.errors import VerifyError
from ckpt_surgery.measure.compare import Verdict, all_gradients, compare, noise_floors
from ckpt_surgery.measure.kinds import CauseKind, FaultKind
from ckpt_surgery.measure.record import RunRecord, StepPart
from ckpt_surgery.measure.results import Explanation, Fault, Level
from ckpt_surgery.measure.setup import Setup

GRADIENT_LEVELS: tuple[Level, ...] = ("run", "set", "values")
"""The levels that fail where two runs do not compute the same."""

_ROUNDINGS = (1, 2)  # a single one hits the same bits in a gradient of few elements now and then


class Reference:
    """The run without checkpointing that every mode is held against. Made by `run_reference`.

    More such runs are made only where something looks wrong, and once each.
    """

    def __init__(self, setup: Setup, record: RunRecord) -> None:
        self._setup = setup
        self.record = record

    def verdict(self, run: RunRecord) -> Verdict:
        """The verdict without any noise floor where nothing is wrong then, and with the measured one otherwise."""
        strict = compare(self.record, run, floors={}, tolerance=self._setup.tolerance)
        if not (strict.lost or strict.gained or strict.wrong):
            return strict
        return compare(self.record, run, floors=self._floors, tolerance=self._setup.tolerance)

    @cached_property
    def irreproducible(self) -> Fault | None:
        """The fault of a model whose run without checkpointing differs when it is repeated; None where it does not."""
        verdict = compare(self.record, self._setup.run(None), floors={}, tolerance=self._setup.tolerance)
        first = next((fault for fault in verdict.faults if fault.level in GRADIENT_LEVELS), None)
        if first is None:
            return None
        return Fault(FaultKind.IRREPRODUCIBLE, explanation=Explanation(CauseKind.OWN_STATE), underlying=first)

    def equals_without_cache(self, run: RunRecord) -> bool:
        """Whether the model takes `use_cache`, and computes the same as in `run` once its cache is off."""
        if "use_cache" not in inspect.signature(self._setup.model.forward).parameters:
            return False
        verdict = compare(self._setup.run(None, use_cache=False), run, tolerance=self._setup.tolerance)
        return not any(fault.level in GRADIENT_LEVELS for fault in verdict.faults)

    @cached_property
    def _floors(self) -> Mapping[str, float]:
        repeated = [self._setup.run(None, rounding_seed=seed) for seed in _ROUNDINGS]
        return noise_floors(self.record, *(run for run in repeated if not run.error))


def run_reference(setup: Setup) -> Reference:
    """Run once without checkpointing. Raises VerifyError where nothing can be held against that run."""
    record = setup.run(None)
    name = setup.name
    if record.error:
        what = "the loss function" if record.error.part is StepPart.LOSS else "model and inputs"
        raise VerifyError(f"the run of {name} without checkpointing failed: {record.error}; check {what}")
    if not math.isfinite(record.loss):
        raise VerifyError(f"the loss of {name} without checkpointing is {record.loss}: nothing can be held against it")
    for parameter, gradient in all_gradients(record).items():
        if gradient is not None and not bool(gradient.isfinite().all()):
            raise VerifyError(
                f"the gradient of {parameter} holds NaN or infinity in the run of {name} without checkpointing: "
                "try other inputs or float32"
            )
    if not any(gradient is not None for gradient in record.gradients.values()):
        raise VerifyError(f"the loss reaches no parameter of {name}: it needs some that require gradient")
    return Reference(setup, record)
