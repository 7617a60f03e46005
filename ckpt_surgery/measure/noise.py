"""Compare steps with the same steps without checkpointing, up to the noise that rounding adds to them.

Noise is only measured if bits differ: by runs that add up in another order, and by a repeated run. If that one differs
too, kernels add up in no fixed order, as GPU kernels with atomics do. Then more runs are made, since a few do not show
how far the noise of a narrow dtype goes, and a fault has to show twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import combinations

from ckpt_surgery.measure.compare import MANY_ENTRIES, Floor, Verdict, compare, noise_floors
from ckpt_surgery.measure.record import RunRecord
from ckpt_surgery.measure.results import Fault

_ROUNDINGS = (1, 2)  # seeds; a single one may leave the bits of a small gradient as they are

_MORE_ROUNDINGS = (3, 4, 5, 6, 7, 8)

_MORE_AGAIN = 6
"""The further repetitions of a training whose kernels add up in no fixed order."""

_NARROW = 1e-4
"""The eps from which on one rounding, across the bend of a ReLU, may move a gradient by more than the root of eps."""

Runs = Callable[[int], Sequence[RunRecord]]
"""The steps of one training, by their order, with rounding perturbed by a seed that is not 0."""


class NoisyReference:
    """The steps of a training without checkpointing. `run` runs it, also the first time if there are no `records`.

    `likely` gives the noise of one step of the same model in the same dtype: differences within it need no noise of
    their own, which would take several trainings. `eps` is that of the dtype in which products are rounded, if it is
    larger than that of the gradients, as under autocast.
    """

    def __init__(
        self,
        run: Runs,
        records: Sequence[RunRecord] | None = None,
        tolerance: float | None = None,
        likely: Callable[[], Mapping[str, Floor]] | None = None,
        eps: float = 0.0,
    ) -> None:
        self._run = run
        self._given = records
        self._tolerance = tolerance
        self._likely = likely
        self._eps = eps

    @cached_property
    def records(self) -> Sequence[RunRecord]:
        """The records of the steps, up to the one that failed."""
        return self._run(0) if self._given is None else self._given

    def verdict(self, index: int, run: RunRecord) -> Verdict:
        """Compare a step with the reference step of the same index: by equal bits, or else by the measured noise."""
        reference = self.records[index]

        def with_floors(floors: Mapping[str, Floor]) -> Verdict:
            return compare(reference, run, floors=floors, tolerance=self._tolerance)

        strict = with_floors({})
        if strict.gradient_fault is None or run.error:
            return strict
        if self._likely is not None and (likely := with_floors(self._likely())).gradient_fault is None:
            return likely
        if self.irreproducible:
            return strict
        if (rounded := with_floors(self.rounding(index))).gradient_fault is None:
            return rounded
        repeated = with_floors(self.floors(index))
        if repeated.gradient_fault is None:
            return repeated
        more = list(self._again_more) if self.is_noisy else []
        more += self._rounded_more if self._may_be_chance(index, repeated) else []
        trainings = [*self._rounded, self._again, *more]
        return with_floors(noise_floors(reference, *_steps_at(index, trainings))) if more else repeated

    def _may_be_chance(self, index: int, verdict: Verdict) -> bool:
        """Tell whether everything that differs has few entries, whose noise two runs hardly show.

        The gradient of a bias before a normalisation is zero, so that what rounding leaves of it is all noise.
        """
        gradients = self.records[index].all_gradients
        named = (gradients.get(name) for name in (*verdict.lost, *verdict.gained, *verdict.wrong))
        return all(gradient is not None and gradient.numel() < MANY_ENTRIES for gradient in named)

    def first_fault(self, runs: Sequence[RunRecord]) -> Fault | None:
        """Return the first fault in the steps of another training; None if they compute the same."""
        verdicts = (self.verdict(index, run) for index, run in enumerate(runs[: len(self.records)]))
        return next(filter(None, (verdict.gradient_fault for verdict in verdicts)), None)

    @cached_property
    def irreproducible(self) -> Fault | None:
        """The first fault beyond rounding between repetitions of the training; None where they agree.

        In a narrow dtype, kernels that add up in no fixed order make a run differ as much now and then: there it is
        only reported if no two of four runs agree.
        """
        fault = self._difference(self.records, self._again)
        if fault is None or max(self._eps, *(record.root_of_eps**2 for record in self.records)) < _NARROW:
            return fault
        runs = [self.records, self._again, *self._again_more[:2]]
        return fault if all(self._difference(run, other) for run, other in combinations(runs, 2)) else None

    @cached_property
    def is_noisy(self) -> bool:
        """Whether the training differs in any bit when it is repeated."""
        pairs = zip(self.records, self._again, strict=False)
        return any(compare(record, again, floors={}).gradient_fault for record, again in pairs)

    def _difference(self, training: Sequence[RunRecord], other: Sequence[RunRecord]) -> Fault | None:
        """Return the first fault beyond rounding between two trainings; None where they agree."""
        for record, again in zip(training, other, strict=False):
            tolerance = max(record.root_of_eps, self._eps**0.5) if self._tolerance is None else self._tolerance
            if fault := compare(record, again, floors={}, tolerance=tolerance).gradient_fault:
                return fault
        return None

    def floors(self, index: int) -> Mapping[str, Floor]:
        """Return what rounding, and kernels that add up in no fixed order, can change in a step."""
        return noise_floors(self.records[index], *_steps_at(index, [*self._rounded, self._again]))

    def rounding(self, index: int = 0) -> Mapping[str, Floor]:
        """Return what rounding alone can change in a step."""
        return noise_floors(self.records[index], *_steps_at(index, self._rounded))

    @cached_property
    def _again(self) -> Sequence[RunRecord]:
        return self._run(0)

    @cached_property
    def _again_more(self) -> list[Sequence[RunRecord]]:
        return [self._run(0) for _ in range(_MORE_AGAIN)]

    @cached_property
    def _rounded(self) -> list[Sequence[RunRecord]]:
        return [self._run(seed) for seed in _ROUNDINGS]

    @cached_property
    def _rounded_more(self) -> list[Sequence[RunRecord]]:
        return [self._run(seed) for seed in _MORE_ROUNDINGS]


def _steps_at(index: int, trainings: Sequence[Sequence[RunRecord]]) -> list[RunRecord]:
    return [steps[index] for steps in trainings if index < len(steps) and not steps[index].error]


def why_no_reference(records: Sequence[RunRecord]) -> str:
    """Say why steps cannot be a reference: one failed, or gave a value that is not finite. Empty if they can be."""
    for record in records:
        if record.error:
            return str(record.error)
        if not math.isfinite(record.loss):
            return f"the loss is {record.loss}"
        for name, gradient in record.all_gradients.items():
            if gradient is not None and not bool(gradient.isfinite().all()):
                return f"the gradient of {name} holds NaN or infinity"
    return ""
