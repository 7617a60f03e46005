"""Why a family is in no series."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ckpt_surgery.upstream.evidence.results import CommandRun


class OmissionKind(Enum):
    """The reason; the values are sentences without their full stop."""

    NO_FAULT = "verify finds no fault in it as it is, so nothing shows that the repair is needed"
    NO_EFFECT = "verify finds the same faults after the repair as before"
    REVERTED = "upstream's own scripts revert all of its repair"
    NO_REPAIR = "none of the chosen rules can repair it: a person has to"


@dataclass(frozen=True, slots=True)
class Omission:
    """The reason, and the runs of upstream's fixers that failed on the way."""

    kind: OmissionKind
    failed: tuple[CommandRun, ...] = ()

    @property
    def text(self) -> str:
        """The reason in words."""
        failures = (f"{ran.command} failed with exit code {ran.code}" for ran in self.failed)
        return "; ".join([self.kind.value, *failures])
