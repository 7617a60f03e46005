"""The events that a worker sends, and the phases of an examination."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from ckpt_surgery.measure.results import MODES, Mode


class Event(StrEnum):
    """The kinds of events. Every call ends with DONE or FAILED; an examination sends the others."""

    PHASE = "phase"
    REPORT = "report"
    MODE = "mode"
    REPAIR = "repair"
    DONE = "done"
    FAILED = "failed"


class PhaseKind(StrEnum):
    """The kinds of phases of an examination, in their order."""

    BUILD = "build"
    REFERENCE = "reference"
    MODE = "mode"
    SURGERY = "wrap_blocks"
    MODE_AFTER = "after"


@dataclass(frozen=True, slots=True)
class Phase:
    """The current step of an examination. `mode` is the mode that it examines, None if it examines none."""

    kind: PhaseKind
    mode: Mode | None = None

    @property
    def name(self) -> str:
        """The key of the phase in `Report.seconds`, such as `build`, `reentrant` or `after reentrant`."""
        match self.kind:
            case PhaseKind.MODE:
                return str(self.mode)
            case PhaseKind.MODE_AFTER:
                return f"{self.kind} {self.mode}"
            case _:
                return str(self.kind)

    @classmethod
    def of(cls, kind: str, mode: str | None) -> Self:
        """Return the phase that JSON data names. Raises ValueError if there is no such phase."""
        return cls(PhaseKind(kind), None if mode is None else MODES[MODES.index(mode)])
