"""Faults of any kind, with default details, without torch."""

from __future__ import annotations

from collections.abc import Mapping

from ckpt_surgery.measure.kinds import CauseKind, FaultKind
from ckpt_surgery.measure.results import Detail, Fault, FaultCause, Level

DETAILS: Mapping[str, Detail] = {
    "error": "backward raised RuntimeError: the disk is full",
    "count": 1,
    "total": 8,
    "expected": 2,
    "found": 3,
    "forward": 1,
    "backward": 2,
    "before": 0,
    "reference": 4096,
    "kept": 2048,
    "best": 1024,
    "ratio": 2.0,
    "first": 1024,
    "most": 4096,
    "loop": "accumulation",
    "precision": "float16",
    "ranks": (1,),
    "world_size": 2,
    "own": "at model.py:12",
}
NAMES = {
    "block": "ToyLayer",
    "outer": "ToyStage",
    "argument": "residual",
    "module": "layers.0",
    "model": "ToyModel",
    "attribute": "layers.0.calls",
    "functions": "Toy",
    "what": "autocast",
}
ONE_OF_LEVEL: Mapping[Level, FaultKind] = {
    "run": FaultKind.STEP_RAISED,
    "recompute": FaultKind.NOT_RECOMPUTED,
    "set": FaultKind.GRADIENT_LOST,
    "values": FaultKind.GRADIENT_VALUE,
    "state": FaultKind.BUFFER_CHANGED,
    "cost": FaultKind.KEPT_BYTES,
    "loop": FaultKind.LOOP_DIFFERS,
    "precision": FaultKind.PRECISION_DIFFERS,
    "ranks": FaultKind.PARAMETERS_DIFFER,
}
WITH_AN_ERROR = {FaultKind.GRADIENT_VALUE, FaultKind.MEAN_VALUE}
ABOUT_ANOTHER = {
    FaultKind.IRREPRODUCIBLE,
    FaultKind.LOOP_DIFFERS,
    FaultKind.PRECISION_DIFFERS,
    FaultKind.RANKS_DISAGREE,
}


def why(kind: CauseKind, **names: str) -> FaultCause:
    """Make an explanation of this kind, with default names if none are given."""
    return FaultCause(kind, {**NAMES, **names})


def fault(kind: FaultKind, *subjects: str, explanation: FaultCause | None = None, **details: Detail) -> Fault:
    figures = {**DETAILS, **({"error": 0.5} if kind in WITH_AN_ERROR else {}), **details}
    below = fault(FaultKind.GRADIENT_LOST, "head.weight") if kind in ABOUT_ANOTHER else None
    return Fault(kind, subjects, figures, explanation, below)


def fault_at(level: Level, *subjects: str, explanation: FaultCause | None = None) -> Fault:
    return fault(ONE_OF_LEVEL[level], *subjects, explanation=explanation)
