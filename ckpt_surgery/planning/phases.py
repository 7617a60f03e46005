"""The parts of a training step. Imports no torch."""

from __future__ import annotations

from enum import StrEnum


class StepPhase(StrEnum):
    """The part of a step in which an operator ran."""

    FORWARD = "forward"
    RECOMPUTE = "recompute"
    BACKWARD = "backward"
