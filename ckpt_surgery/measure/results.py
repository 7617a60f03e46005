"""What verification found, as plain data: made by `verify` and `survey`, shown by `report`, moved as JSON.

Nothing here measures, judges or needs torch.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from ckpt_surgery.text import some

Mode = Literal["non_reentrant", "reentrant"]
Level = Literal["run", "recompute", "set", "values", "state", "cost", "ranks"]
Outcome = Literal["ok", "failed", "skipped"]
Status = Literal["ok", "failed", "unsupported", "not built"]
RepairStatus = Literal["ok", "refused", "failed", "not repaired"]

MODES: tuple[Mode, ...] = get_args(Mode)
LEVELS: tuple[Level, ...] = get_args(Level)
LEVEL_TITLES: Mapping[Level, str] = {
    "run": "the step ends",
    "recompute": "every block is recomputed once",
    "set": "no gradient is lost",
    "values": "gradients are equal",
    "state": "buffers, cache and randomness are as without checkpointing",
    "cost": "memory is saved at the expected price",
    "ranks": "ranks agree",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that checkpointing does wrong.

    `subjects` are the full names of the blocks, parameters or buffers concerned, in the model's order; empty
    where it concerns the step as a whole. `expected` and `seen` are short clauses. `cause` is one sentence and
    `rule` a code such as CKPT003; both are empty where the cause is not known.
    """

    level: Level
    expected: str
    seen: str
    subjects: tuple[str, ...] = ()
    cause: str = ""
    rule: str = ""

    def __str__(self) -> str:
        where = some(self.subjects)
        text = f"{where}: " if where else ""
        text += f"expected {self.expected}, saw {self.seen}."
        return text + (f" {self.cause}" if self.cause else "") + (f" [{self.rule}]" if self.rule else "")


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes that autograd kept from forward to backward, and FLOPs of forward and backward.

    `best` is what the same stack would cost if every block were checkpointed once and kept nothing but what
    goes in and comes out of it.
    """

    kept_bytes: int
    reference_kept_bytes: int
    best_kept_bytes: int
    backward_flops: int
    reference_backward_flops: int
    best_backward_flops: int
    forward_flops: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """Bytes of activations alive over one step: `points` are pairs of operator count and bytes, at most 200.

    `backward` is the operator count at which the backward began.
    """

    points: tuple[tuple[int, int], ...]
    backward: int


@dataclass(frozen=True, slots=True)
class BlockCount:
    """How often one block was entered: without checkpointing, and in this mode's forward and backward.

    `kind` is "layer" for a `GradientCheckpointingLayer` and "plain" for a module that should be one.
    """

    name: str
    kind: str
    reference: int
    forward: int
    backward: int


@dataclass(frozen=True, slots=True)
class ModeReport:
    """One mode of checkpointing next to the run without. `errors` are relative errors, by parameter name.

    `notes` tell what differs without being a fault. `refused` is the sentence with which a surgery refuses a call
    that reentrant checkpointing would get wrong: nothing was measured then, and it is no fault.
    """

    mode: Mode
    faults: tuple[Fault, ...]
    outcomes: Mapping[Level, Outcome]
    notes: tuple[str, ...] = ()
    blocks: tuple[BlockCount, ...] = ()
    errors: Mapping[str, float] = field(default_factory=dict)
    cost: Cost | None = None
    timeline: Timeline | None = None
    seconds: float = 0.0
    refused: str = ""

    @property
    def ok(self) -> bool:
        return not self.faults and not self.refused


@dataclass(frozen=True, slots=True)
class Repair:
    """What `wrap_blocks` made of a model: the same modes next to the same run without checkpointing.

    `surgery` is the table that the surgery prints. `problem` says why there is none, or nothing to compare with.
    """

    modes: tuple[ModeReport, ...] = ()
    surgery: str = ""
    problem: str = ""

    @property
    def status(self) -> RepairStatus:
        if self.problem or not self.modes:
            return "not repaired"
        if any(mode.faults for mode in self.modes):
            return "failed"
        return "refused" if any(mode.refused for mode in self.modes) else "ok"


@dataclass(frozen=True, slots=True)
class Report:
    """Everything known about one model. `problem` says why there is no verdict: not built, or unsupported.

    `supported` is False where the model says that it supports no checkpointing. Where it holds checkpointing
    layers all the same there are `modes`: what would be if it said otherwise.

    `target` is what the command line takes to look at this model again. `variant` tells apart runs of one class
    with different settings, such as `output_router_logits`. `versions` are those of torch and transformers.
    `repair` is what became of it after `wrap_blocks`, where that was tried; `status` and `faults` are of the model
    as it is without. `seconds` are wall-clock seconds by phase: build, reference, each mode, and each again "after".
    """

    model: str
    model_type: str = ""
    variant: str = ""
    target: str = ""
    dtype: str = ""
    parameters: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    modes: tuple[ModeReport, ...] = ()
    reference: Timeline | None = None
    problem: str = ""
    supported: bool = True
    seconds: Mapping[str, float] = field(default_factory=dict)
    repair: Repair | None = None

    @property
    def ok(self) -> bool:
        """Whether every mode was measured and none has a fault."""
        return self.status == "ok"

    @property
    def status(self) -> Status:
        if not self.supported:
            return "unsupported"
        if any(not mode.ok for mode in self.modes):
            return "failed"
        return "not built" if self.problem or not self.modes else "ok"

    @property
    def label(self) -> str:
        """The class, with its variant where there is one."""
        return f"{self.model} ({self.variant})" if self.variant else self.model

    @property
    def faults(self) -> tuple[tuple[Mode, Fault], ...]:
        """Every fault with its mode."""
        return tuple((mode.mode, fault) for mode in self.modes for fault in mode.faults)

    def __str__(self) -> str:
        from ckpt_surgery.report.text import report_lines

        return "\n".join(report_lines(self))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data; `report_of` reads it back."""
        data = {**dataclasses.asdict(self), "status": self.status}
        if self.repair is not None:
            data["repair"]["status"] = self.repair.status
        return data

    def to_json(self) -> str:
        """One JSON document, the one that `verify --output-format json` lists."""
        return json.dumps(_finite(self.to_dict()), indent=2) + "\n"

    def to_html(self, path: Path | str) -> None:
        """Write the report as one page that needs no network."""
        from ckpt_surgery.report.html import html_page

        Path(path).write_text(html_page([self]), encoding="utf-8")


def report_of(data: Mapping[str, Any]) -> Report:
    """The report that `Report.to_dict` made `data` from. Raises KeyError or TypeError where it did not."""
    fields = {name: value for name, value in data.items() if name != "status"}
    return Report(
        **{
            **fields,
            "modes": tuple(map(_mode_of, data["modes"])),
            "reference": _timeline_of(data["reference"]),
            "repair": _repair_of(data["repair"]),
        }
    )


def _repair_of(data: Mapping[str, Any] | None) -> Repair | None:
    if data is None:
        return None
    return Repair(tuple(map(_mode_of, data["modes"])), data["surgery"], data["problem"])


def _mode_of(data: Mapping[str, Any]) -> ModeReport:
    return ModeReport(
        **{
            **data,
            "faults": tuple(Fault(**{**fault, "subjects": tuple(fault["subjects"])}) for fault in data["faults"]),
            "notes": tuple(data["notes"]),
            "blocks": tuple(BlockCount(**block) for block in data["blocks"]),
            "errors": {name: math.nan if error is None else error for name, error in data["errors"].items()},
            "cost": None if data["cost"] is None else Cost(**data["cost"]),
            "timeline": _timeline_of(data["timeline"]),
        }
    )


def _timeline_of(data: Mapping[str, Any] | None) -> Timeline | None:
    return None if data is None else Timeline(tuple((at, held) for at, held in data["points"]), data["backward"])


def _finite(value: Any) -> Any:
    """JSON knows no NaN: it becomes null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value
