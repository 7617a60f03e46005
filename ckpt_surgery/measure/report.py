"""Everything known about one model: as data, as JSON and as plain text. Nothing here measures or needs torch.

Pages, plots and summaries over many models are in `ckpt_surgery.report`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ckpt_surgery.measure.results import (
    LEVEL_TITLES,
    LEVELS,
    MODES,
    Cell,
    Fault,
    Mode,
    ModeReport,
    Repair,
    Skip,
    Timeline,
    finite,
)
from ckpt_surgery.text import ShownInNotebooks, aligned, listed, percent, plural, ratio, size, wrapped

Status = Literal["ok", "failed", "skipped", "unsupported", "not built"]
WIDTH = 100
MARKS: Mapping[Cell, str] = {"ok": "ok", "failed": "FAILED", "skipped": "skipped", "refused": "refused"}
"""How each cell reads in plain text."""
COSTS = ("kept", "without", "best", "saved", "backward FLOPs", "best")
"""The columns of `Report.cost_rows`, after that of the mode."""
_RULE = "\u2500"  # in the table of a surgery; not every terminal can show it


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The facts about a model before it runs: its dtype, its number of parameters, and the file of its class.

    `source` is empty if the class is one of the installed transformers.
    """

    dtype: str = ""
    parameters: int = 0
    source: str = ""


@dataclass(frozen=True, slots=True)
class Report(ShownInNotebooks):
    """Everything known about one model. `problem` says why there is no verdict: not built, or unsupported.

    `supported` is False if the model claims no support for checkpointing. If it has checkpointing layers all the same,
    `modes` show what would happen if it claimed support.

    `target` is what the command line takes to look at this model again. `variant` tells apart runs of one class with
    different settings, such as `output_router_logits`. `versions` are those of torch and transformers. `repair` is the
    result after `wrap_blocks`, if that was tried; `status` and `faults` describe the model without it. `seconds` are
    wall-clock seconds by phase: build, reference, each mode, and each of these again "after".
    """

    model: str
    model_type: str = ""
    variant: str = ""
    target: str = ""
    facts: ModelFacts = ModelFacts()
    versions: Mapping[str, str] = field(default_factory=dict)
    modes: tuple[ModeReport, ...] = ()
    reference: Timeline | None = None
    problem: str = ""
    supported: bool = True
    seconds: Mapping[str, float] = field(default_factory=dict)
    repair: Repair | None = None

    @property
    def ok(self) -> bool:
        """Whether a mode was measured, and none has a fault or is refused."""
        return self.status == "ok"

    @property
    def status(self) -> Status:
        """The outcome for the model: "skipped" if there are modes and none of them was run."""
        if not self.supported:
            return "unsupported"
        if any(mode.wrong for mode in self.modes):
            return "failed"
        if self.problem or not self.modes:
            return "not built"
        return "ok" if any(mode.ok for mode in self.modes) else "skipped"

    @property
    def label(self) -> str:
        """The class, with its variant if it has one."""
        return f"{self.model} ({self.variant})" if self.variant else self.model

    @property
    def faults(self) -> tuple[tuple[Mode, Fault], ...]:
        """Every fault with its mode."""
        return tuple((mode.mode, fault) for mode in self.modes for fault in mode.faults)

    @property
    def merged_faults(self) -> list[tuple[tuple[Mode, ...], Fault]]:
        """Every fault once, with the modes that have it. Faults with the same text are one."""
        merged: dict[tuple[object, ...], tuple[list[Mode], Fault]] = {}
        for mode, fault in self.faults:
            merged.setdefault((fault.kind, fault.subjects, str(fault)), ([], fault))[0].append(mode)
        return [(tuple(modes), fault) for modes, fault in merged.values()]

    @property
    def merged_skips(self) -> list[tuple[tuple[Mode, ...], Skip]]:
        """Every reason to skip a level once, with the modes that have it."""
        merged: dict[str, tuple[list[Mode], Skip]] = {}
        for mode in self.modes:
            for skip in mode.skips:
                merged.setdefault(str(skip), ([], skip))[0].append(mode.mode)
        return [(tuple(modes), skip) for modes, skip in merged.values()]

    @property
    def refusals(self) -> list[tuple[Mode, str]]:
        """The modes in which a surgery refuses a call, with its sentence."""
        return [(mode.mode, mode.refused) for mode in self.modes if mode.refused]

    @property
    def repaired(self) -> Report:
        """A report of the model after `wrap_blocks`; without modes if that was not tried."""
        repair = self.repair or Repair()
        return replace(self, modes=repair.modes, problem=repair.problem, repair=None)

    def columns(self, *, alone: bool = False) -> list[tuple[str, ModeReport | None]]:
        """List the modes with their titles; after a repair, each mode is followed by its result there.

        Args:
            alone: name the mode in the title of a result after a repair: "non_reentrant, after" instead of "after".

        Returns:
            Pairs of a title and a mode; None stands for a mode that was not examined.
        """
        if self.repair is None:
            return [(mode.mode, mode) for mode in self.modes]
        before, after = ({run.mode: run for run in runs} for runs in (self.modes, self.repair.modes))
        columns: list[tuple[str, ModeReport | None]] = []
        for mode in (mode for mode in MODES if mode in {**before, **after}):
            columns.append((mode, before.get(mode)))
            columns += [(f"{mode}, after" if alone else "after", after[mode])] if mode in after else []
        return columns

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self, *, width: int = WIDTH, repaired_by: str = "wrap_blocks") -> list[str]:
        """Return lines of plain text: the model, the outcome of each level and mode, faults, skips and cost.

        If a repair was tried, its results follow in more columns and sections.

        Args:
            width: the longest line in characters; the table of the surgery keeps its own width.
            repaired_by: the name of the repair in the text.
        """
        facts = self.facts
        about = [facts.dtype, plural(facts.parameters, "parameter") if facts.parameters else ""]
        about += [f"{package} {version}" for package, version in self.versions.items()]
        kind = f" ({self.model_type})" if self.model_type else ""
        then = f"; after {repaired_by}: {self.repair.status}" if self.repair else ""
        headline = f"{self.label}{kind}: " + f"{self.status}{then}".replace("failed", MARKS["failed"])
        lines = [*wrapped(headline, width), *wrapped(", ".join(filter(None, about)), width, "  ")]
        if facts.source:
            lines += wrapped(f"code: {facts.source}", width, "  ")
        if self.problem:
            lines += wrapped(self.problem, width, "  ")
        elif not self.supported:
            lines += wrapped("It claims no support for checkpointing. If it did:", width, "  ")
        lines += [*self._level_lines(), *self._fault_lines(width)]
        if self.repair is None:
            return [*lines, *self._cost_lines()]
        lines += [*self.repaired._fault_lines(width, f" after {repaired_by}"), *self._cost_lines()]
        table = [f"  {line.replace(_RULE, '-')}" for line in self.repair.surgery.splitlines()]
        sentence = f"{'Refused' if self.repair.refused else 'Not repaired'}: {self.repair.problem}"
        problem = wrapped(sentence, width, "  ") if self.repair.problem else []
        return [*lines, "", *table, *problem] if table or problem else lines

    def _level_lines(self) -> list[str]:
        columns = self.columns()
        if not columns:
            return []
        runs = [run for _, run in columns]
        levels = [level for level in LEVELS if any(run and (level in run.outcomes or run.faults) for run in runs)]
        # a line has no room for both titles and repairs
        titles = LEVEL_TITLES if self.repair is None else dict.fromkeys(LEVELS, "")
        rows = [[*(title for title, _ in columns), "level", ""]]
        rows += [[*(MARKS[run.cell(lv)] if run else "-" for run in runs), lv, titles[lv]] for lv in levels]
        return ["", *aligned(rows)]

    def _fault_lines(self, width: int, when: str = "") -> list[str]:
        faults = self.merged_faults
        lines = ["", f"  Faults{when}"] if faults else []
        for modes, fault in faults:
            lines += wrapped(f"{' and '.join(modes)}, {fault.level}: {fault}", width, "  - ", "    ")
        refused = self.refusals
        lines += ["", f"  Refused{when}"] if refused else []
        for mode, sentence in refused:
            lines += wrapped(f"{mode}: {sentence}", width, "  - ", "    ")
        skips = self.merged_skips
        lines += ["", f"  Skipped{when}"] if skips else []
        for modes, skip in skips:
            lines += wrapped(f"{' and '.join(modes)}, {listed(skip.levels)}: {skip.reason}", width, "  - ", "    ")
        return lines

    @property
    def cost_rows(self) -> list[list[str]]:
        """The cells of a table of costs, one row for each mode that has a cost; the columns are `COSTS`."""
        rows = []
        for title, mode in self.columns(alone=True):
            if mode and (cost := mode.cost):
                reference = cost.reference_backward_flops
                flops = (ratio(cost.backward_flops, reference), ratio(cost.best_backward_flops, reference))
                kept = map(size, (cost.kept_bytes, cost.reference_kept_bytes, cost.best_kept_bytes))
                rows.append([title, *kept, percent(cost.saved_share), *flops])
        return rows

    def _cost_lines(self) -> list[str]:
        rows = self.cost_rows
        if not rows:
            return []
        legend = "kept: bytes held from forward to backward; saved: of what checkpointing could save"
        saved = [
            f"  {title}, {kept}" for title, mode in self.columns(alone=True) if mode for kept in mode.kept_results
        ]
        return ["", *aligned([["cost", *COSTS], *rows]), f"  ({legend})", *saved]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data with the facts at the top level; `from_dict` reads it back."""
        values = dataclasses.asdict(self)
        return {
            **values.pop("facts"),
            **values,
            "modes": [mode.to_dict() for mode in self.modes],
            "repair": None if self.repair is None else self.repair.to_dict(),
            "status": self.status,
        }

    def to_json(self) -> str:
        """Return one JSON document, as in the list of `verify --output-format json`."""
        return json.dumps(finite(self.to_dict()), indent=2) + "\n"

    @property
    def rules(self) -> list[str]:
        """The codes of the rules behind the faults."""
        return sorted({fault.rule for _mode, fault in self.faults if fault.rule})

    @property
    def least_saved(self) -> float | None:
        """The share saved in the mode that saves least; None if no mode has one."""
        shares = (mode.cost.saved_share for mode in self.modes if mode.cost)
        return min((share for share in shares if share is not None), default=None)

    @property
    def why_no_verdict(self) -> str:
        """The reason why there is no verdict, as a clause."""
        return self.problem or "no mode was run"

    @property
    def stays_broken(self) -> bool:
        """Whether the model is wrong in the end: after `wrap_blocks`, or as it is if that was not tried or refused."""
        if self.repair is None or self.repair.status in ("not repaired", "refused"):
            return self.status == "failed"
        return self.repair.status == "failed"

    @property
    def broken_by_repair(self) -> bool:
        """Whether `wrap_blocks` makes a model wrong that was not, or refuses one that was right."""
        if self.repair is None or any(mode.wrong for mode in self.modes):
            return False
        return self.repair.status == "failed" or (
            self.repair.status == "refused" and any(mode.ok for mode in self.modes)
        )

    @property
    def worth_telling(self) -> bool:
        """Whether something is wrong, before or after `wrap_blocks`."""
        return self.broken_by_repair or any(mode.wrong for mode in self.modes)

    @property
    def after(self) -> str:
        """The verdict on what runs after `wrap_blocks`; empty if that was not tried."""
        if self.repair is None:
            return ""
        return ", ".join(mode.verdict for mode in self.repair.modes) or self.repair.status

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Report:
        """Read back `to_dict`. Raises KeyError, TypeError or ValueError for any other data."""
        facts = {field.name: data[field.name] for field in dataclasses.fields(ModelFacts)}
        return cls(
            **{
                **{name: value for name, value in data.items() if name != "status" and name not in facts},
                "facts": ModelFacts(**facts),
                "modes": tuple(map(ModeReport.from_dict, data["modes"])),
                "reference": Timeline.from_dict(data["reference"]),
                "repair": Repair.from_dict(data["repair"]),
            }
        )

    @property
    def has_model(self) -> bool:
        """Whether there is a model to examine. A model that only claims no support has a `problem` as well."""
        return not (self.problem and self.supported)
