"""What stands in for an examination where only the processes around it are tested: it needs no torch.

A model is a dictionary: for `reference` and each mode, a function that is called when its turn comes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ckpt_surgery.verification.errors import Unverifiable
from ckpt_surgery.verification.results import LEVELS, Fault, Mode, ModeReport, Report

EXAMINATION = "tests.verification.survey.stand_in:StandIn"


class Refusal(Unverifiable):
    """One sentence about what cannot be examined."""


class StandIn:
    def __init__(self, model: Any, inputs: Any, *, levels: str | Sequence[str] = "all") -> None:
        self.model, self.inputs = model, inputs
        self.levels = LEVELS if levels == "all" else tuple(levels)

    def reference(self) -> Report:
        self._turn("reference")
        problem, supported = self.model.get("problem", ""), self.model.get("supported", True)
        return Report(self.model.get("name", "Dictionary"), problem=problem, supported=supported)

    def examine(self, mode: Mode) -> ModeReport:
        self._turn(mode)
        faults = tuple(Fault("set", "a gradient", "none", (name,)) for name in self.model.get("lost", ()))
        note = str(self.inputs)
        return ModeReport(mode, faults, {level: "ok" for level in LEVELS if level in self.levels}, notes=(note,))

    def _turn(self, what: str) -> None:
        if what in self.model:
            self.model[what]()


def leave(_emit: object, /, code: int) -> None:
    os._exit(code)
