"""Compare one kind of training with checkpointing to the same without."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ckpt_surgery.measure.compare import Floor
from ckpt_surgery.measure.kinds import FaultKind, LoopKind, Precision, SkipKind
from ckpt_surgery.measure.noise import NoisyReference, not_finite
from ckpt_surgery.measure.record import RunRecord
from ckpt_surgery.measure.results import Detail, Fault, Level, LevelVerdict, Mode, Skip
from ckpt_surgery.measure.training import Training

_TRAINING_KINDS: Mapping[Level, tuple[FaultKind, SkipKind, SkipKind]] = {
    "loop": (FaultKind.LOOP_DIFFERS, SkipKind.LOOP_NOT_RUN, SkipKind.LOOP_REFUSED),
    "precision": (FaultKind.PRECISION_DIFFERS, SkipKind.PRECISION_NOT_RUN, SkipKind.PRECISION_REFUSED),
}
"""By level: the fault of a training that differs, and why one is skipped: it cannot be run alone, or is refused."""


class TrainingJudge:
    """One kind of training, which `train` runs in a mode and with a seed for rounding; the reference runs once.

    Faults and reasons to skip name its `kind`. Differences up to `tolerance` do not count, as in `verify`. `likely`
    and `eps` are as in `NoisyReference`.
    """

    def __init__(
        self,
        level: Level,
        kind: LoopKind | Precision,
        train: Callable[[Mode | None, int], Training],
        tolerance: float | None = None,
        likely: Callable[[], Mapping[str, Floor]] | None = None,
        eps: float = 0.0,
    ) -> None:
        self._level: Level = level
        self._train = train
        self._details: dict[str, Detail] = {level: str(kind)}
        self._differs, self._not_run, self._refused = _TRAINING_KINDS[level]
        self._reference = NoisyReference(self._alone, tolerance=tolerance, likely=likely, eps=eps)

    def judge(self, mode: Mode) -> Training | Fault | Skip:
        """Return the fault in this mode, a skip where it cannot be judged, or the training if it computes the same."""
        if problem := not_finite(self._reference.records):
            return self._skip(self._not_run, problem)
        training = self._train(mode, 0)
        if training.refused is not None:
            return self._skip(self._refused, training.refused)
        fault = self._reference.first_fault(training.steps)
        if fault and self._reference.is_noisy:
            training = self._train(mode, 0)
            fault = self._reference.first_fault(training.steps)
        if fault:
            return Fault(self._differs, fault.subjects, self._details, fault.explanation, underlying=fault)
        return training

    def _alone(self, rounding_seed: int) -> Sequence[RunRecord]:
        return self._train(None, rounding_seed).steps

    def _skip(self, kind: SkipKind, error: str) -> Skip:
        return Skip((self._level,), kind, {**self._details, "error": error})


def sorted_out(results: Sequence[Training | Fault | Skip]) -> LevelVerdict:
    """Return the verdict of a level, which is measured if any of its trainings could be run."""
    faults = tuple(result for result in results if isinstance(result, Fault))
    skips = tuple(result for result in results if isinstance(result, Skip))
    return LevelVerdict(faults, skips, measured=len(skips) < len(results))
