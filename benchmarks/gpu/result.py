"""The outcome of a part of a GPU run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from benchmarks.gpu.parts import Part


class State(StrEnum):
    """The progress of a part. One that waits has not run, or its run was ended."""

    WAITING = "waiting"
    ENDED = "ended"
    FAILED = "failed"
    STOPPED = "stopped"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Result:
    """A part, its figures by name, and its `problem` if it did not end properly.

    `no_room` are the measurements for which the device has too little memory, `errors` say why others failed, `notes`
    what was left out, `failed` names tests, and `date` is the day on which it ended.
    """

    part: Part
    state: State = State.WAITING
    problem: str = ""
    figures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seconds: float = 0.0
    failed: Sequence[str] = ()
    no_room: Sequence[str] = ()
    errors: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    date: str = ""

    @classmethod
    def of(cls, part: Part, content: Mapping[str, Any]) -> Result:
        """Return the result that a json file holds."""
        return cls(
            part,
            State(content.get("state", State.WAITING)),
            content.get("problem", ""),
            content.get("figures", {}),
            float(content.get("seconds", 0)),
            content.get("failed", ()),
            content.get("no_room", ()),
            content.get("errors", {}),
            content.get("notes", ()),
            content.get("date", ""),
        )

    @property
    def missed(self) -> list[str]:
        """The names of the figures that miss their targets."""
        return [name for name, figure in self.figures.items() if figure["verdict"] == "missed"]

    @property
    def ran(self) -> bool:
        """Whether the part ended well, with all measurements for which there was room."""
        return self.state is State.ENDED and not self.errors and not self.failed

    @property
    def ok(self) -> bool:
        """Whether it also met its targets."""
        return self.ran and not self.missed
