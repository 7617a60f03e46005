"""Which classes a built model is made of, so that a repair that no measurement went through is known by name."""

from __future__ import annotations

from typing import Any

from ckpt_surgery.survey.target import SurveyTarget, target_of
from ckpt_surgery.survey.worker_pool import WorkerPool, WorkerPoolError


def used_classes(pool: WorkerPool, target: SurveyTarget) -> frozenset[str]:
    """The names of the classes of all modules of a target's model, those they derive from included.

    Empty where the model cannot be built.
    """
    try:
        return frozenset(pool.call(f"{__name__}:class_names", target=target.to_dict()))
    except WorkerPoolError:
        return frozenset()


def class_names(_emit: object, /, target: dict[str, Any]) -> list[str]:
    """The same in the process that builds the model."""
    from ckpt_surgery.survey.build import build

    model, *_ = build(target_of(target))
    return sorted({parent.__name__ for module in model.modules() for parent in type(module).__mro__})
