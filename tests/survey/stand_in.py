"""A fake examination without torch, for tests of the processes around it.

A model is a dictionary: for `reference`, each mode, `wrap_blocks` and each `after` mode, a function that is called
in its turn. What is `lost` is found again by the surgery, unless it `stays_lost`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ckpt_surgery.errors import Unverifiable
from ckpt_surgery.measure.kinds import FaultKind, SkipKind
from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import LEVELS, Fault, Mode, ModeReport, Skip

EXAMINATION = "tests.survey.stand_in:StandIn"


class Refusal(Unverifiable):
    """One sentence about what cannot be examined."""


class StandIn:
    def __init__(self, model: Any, inputs: Any, *, levels: str | Sequence[str] = "all", after: str = "") -> None:
        self.model, self.inputs, self.after = model, inputs, after
        self.levels = LEVELS if levels == "all" else tuple(levels)

    def reference(self) -> Report:
        self._turn("reference")
        problem, supported = self.model.get("problem", ""), self.model.get("supported", True)
        return Report(self.model.get("name", "Dictionary"), problem=problem, supported=supported)

    def examine(self, mode: Mode) -> ModeReport:
        self._turn(f"{self.after}{mode}")
        lost = self.model.get("stays_lost" if self.after else "lost", ())
        faults = tuple(Fault(FaultKind.GRADIENT_LOST, (name,), {"count": 1, "total": 1}) for name in lost)
        skip = Skip(("loop",), SkipKind.LOOP_NOT_RUN, {"loop": "steps", "error": str(self.inputs)})
        return ModeReport(mode, faults, {level: "ok" for level in LEVELS if level in self.levels}, skips=(skip,))

    def repaired(self) -> tuple[StandIn, str]:
        self._turn("wrap_blocks")
        return StandIn(self.model, self.inputs, levels=self.levels, after="after "), "what was done"

    def _turn(self, what: str) -> None:
        if what in self.model:
            self.model[what]()


def leave(_emit: object, /, code: int) -> None:
    os._exit(code)
