"""The table of the most used classes by release of transformers: its rows and columns, its figures, and its page.

Needs neither torch nor transformers: `release_table` measures, and this writes down.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from ckpt_surgery.codemods.finding import Applicability
from ckpt_surgery.measure.report import Report
from ckpt_surgery.report.summary import portable
from ckpt_surgery.text import code, listed, markdown_table, prose

FIGURES = Path(__file__).resolve().parent.parent / "docs" / "coverage" / "releases.json"
"""Where the figures of the page are kept."""
PAGE = FIGURES.with_suffix(".md")
NOTICE = "<!-- Written by `make releases`, and by `python -m docs.generate` from releases.json. -->"
RELEASES = ("4.52.4", "4.53.3", "4.55.4", "5.0.0", "5.10.4", "5.23.0")
CLASSES = (
    "LlamaForCausalLM",
    "GPT2LMHeadModel",
    "BertForMaskedLM",
    "MixtralForCausalLM",
    "T5ForConditionalGeneration",
    "ViTForImageClassification",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "OPTForCausalLM",
    "WhisperForConditionalGeneration",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3nForCausalLM",
    "Zamba2ForCausalLM",
    "GPTBigCodeForCausalLM",
    "MistralForCausalLM",
    "Phi3ForCausalLM",
    "CLIPModel",
    "SiglipModel",
    "BartForConditionalGeneration",
    "Mamba2ForCausalLM",
    "FalconForCausalLM",
    "BloomForCausalLM",
    "GPTNeoXForCausalLM",
    "DeepseekV3ForCausalLM",
    "RoFormerForMaskedLM",
    "ImageGPTForCausalImageModeling",
    "Wav2Vec2ForCTC",
    "SwinForImageClassification",
    "DetrForObjectDetection",
    "Blip2ForConditionalGeneration",
    "LlavaForConditionalGeneration",
    "Qwen2VLForConditionalGeneration",
    "ElectraForMaskedLM",
    "DebertaV2ForMaskedLM",
    "XLNetLMHeadModel",
    "LongformerForMaskedLM",
    "RecurrentGemmaForCausalLM",
    "GitForCausalLM",
    "TrOCRForCausalLM",
)
"""The most used families, and those that were broken in one of the releases."""


class Outcome(StrEnum):
    """What became of one class in one release."""

    OK = "ok"
    REPAIRED = "repaired"
    REFUSED = "refused"
    FAILED = "failed"
    NOT_BUILT = "not built"
    ABSENT = "absent"


MEANING = {
    Outcome.OK: "right in both modes as released, and after `wrap_blocks`",
    Outcome.REPAIRED: "wrong or without checkpointing as released, and right after `wrap_blocks`",
    Outcome.REFUSED: "`wrap_blocks` refuses the class, or a call of it, with a sentence",
    Outcome.FAILED: "something is wrong after `wrap_blocks`",
    Outcome.NOT_BUILT: "no tiny model with a working step could be made",
    Outcome.ABSENT: "the release has no such class",
}


@dataclass(frozen=True, slots=True)
class Column:
    """One release: the outcome of every class, why it is not ok, and what the static half found in its models.

    Attributes:
        versions: of torch and transformers.
        outcomes: by the label of the class: its name, and its variant in brackets where it has one.
        reasons: by label, where the outcome is another than ok or absent.
        files: how many files `check` read.
        before: the findings of `check` by applicability.
        after: the same of a copy that `apply` has repaired.
    """

    versions: Mapping[str, str]
    outcomes: Mapping[str, Outcome]
    reasons: Mapping[str, str] = field(default_factory=dict)
    files: int = 0
    before: Mapping[str, int] = field(default_factory=dict)
    after: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """What `asdict` made `data` from. Raises KeyError, TypeError or ValueError where it did not."""
        return cls(**{**data, "outcomes": {label: Outcome(word) for label, word in data["outcomes"].items()}})

    @property
    def failed(self) -> bool:
        """Whether something is left that this project should have repaired."""
        return Outcome.FAILED in self.outcomes.values() or self.after.get("safe", 0) > 0


def outcome_of(report: Report) -> Outcome:
    """The outcome of a class that was examined as released and after `wrap_blocks`."""
    repaired = report.repair.status if report.repair else "not repaired"
    if report.status == "not built":
        return Outcome.NOT_BUILT
    if repaired == "refused":
        return Outcome.REFUSED
    if repaired == "ok":
        return Outcome.OK if report.status == "ok" else Outcome.REPAIRED
    return Outcome.FAILED


def reason_of(report: Report) -> str:
    """Why the outcome is not ok, as one line of plain text; empty where it is."""
    outcome = outcome_of(report)
    if outcome is Outcome.OK:
        return ""
    if outcome is Outcome.NOT_BUILT:
        return portable(report.problem)
    shown = report if outcome is Outcome.REPAIRED else report.repaired
    said = list(report.repair.refusals) if outcome is Outcome.REFUSED and report.repair else []
    for modes, fault in shown.merged_faults:
        cause = f"{fault.cause} {fault.rule}".strip() or str(fault)
        said.append(f"{cause} ({' and '.join(map(_mode, modes))})")
    if not said:
        said = [
            shown.problem or ("it was not tried" if report.supported else "It claims no support for checkpointing.")
        ]
    return portable("; ".join(dict.fromkeys(said)))


def _mode(mode: str) -> str:
    return mode.replace("_", "-")


def read_columns(path: Path | None = None) -> dict[str, Column]:
    """The columns by release, in the order of RELEASES. Raises like `Column.of`, or OSError."""
    data = json.loads((path or FIGURES).read_text(encoding="utf-8"))
    return {release: Column.of(data[release]) for release in RELEASES if release in data}


def write_columns(columns: Mapping[str, Column], path: Path | None = None) -> None:
    """Keep the columns, in the order of RELEASES."""
    data = {release: asdict(columns[release]) for release in RELEASES if release in columns}
    (path or FIGURES).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def page(columns: Mapping[str, Column]) -> str:
    """The page in docs/coverage."""
    parts = [
        NOTICE,
        "# The most used classes, by release of transformers",
        _introduction(columns),
        markdown_table(["result", "meaning"], [[outcome, meaning] for outcome, meaning in MEANING.items()]),
        "## Live models",
        markdown_table(["class", *columns], [*_rows(columns), *_counts(columns)]),
        _reasons(columns),
        "## Source",
        "What `check` finds in all models of the release, and in a copy that `apply` has repaired. `apply` repairs "
        "the safe ones; the unsafe ones are faults for a person, and the others none. A repair may bring another "
        "finding to light.",
        markdown_table(["", *columns], _static_rows(columns)),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _introduction(columns: Mapping[str, Column]) -> str:
    torches = sorted({column.versions.get("torch", "") for column in columns.values()})
    return (
        f"{len(CLASSES)} classes: the most used families, and those that some release got wrong. Each is a tiny model "
        "with random weights, trained as released, non-reentrant and reentrant, and after `wrap_blocks`, beside a run "
        f"without checkpointing (torch {listed(torches)}). `make releases` measures it: `ckpt_surgery verify --fix` "
        "in an environment for each release."
    )


def labels(columns: Mapping[str, Column]) -> list[str]:
    """The rows: each class, and after it its variants in any release."""
    seen = {label: None for column in columns.values() for label in column.outcomes}
    return [label for name in CLASSES for label in seen if label.partition(" (")[0] == name]


def _outcome(column: Column, label: str) -> Outcome:
    return column.outcomes.get(label, Outcome.ABSENT)


def _rows(columns: Mapping[str, Column]) -> Iterator[list[str]]:
    for label in labels(columns):
        yield [code(label), *(_outcome(column, label) for column in columns.values())]


def _counts(columns: Mapping[str, Column]) -> Iterator[list[str]]:
    for outcome in Outcome:
        counts = [sum(_outcome(column, label) is outcome for label in labels(columns)) for column in columns.values()]
        yield [f"**{outcome}**", *map(str, counts)]


def _reasons(columns: Mapping[str, Column]) -> str:
    """Each reason once, with the releases in which it holds."""
    rows = []
    for label in labels(columns):
        releases: dict[tuple[Outcome, str], list[str]] = {}
        for release, column in columns.items():
            if reason := column.reasons.get(label):
                releases.setdefault((_outcome(column, label), reason), []).append(release)
        rows += [[code(label), ", ".join(where), result, prose(why)] for (result, why), where in releases.items()]
    return "## Why\n\n" + markdown_table(["class", "releases", "result", "reason"], rows) if rows else ""


def _static_rows(columns: Mapping[str, Column]) -> Iterator[list[str]]:
    yield ["files", *(f"{column.files:,}" for column in columns.values())]
    for kind in Applicability:
        yield [f"{kind} findings", *(_change(column, kind) for column in columns.values())]
    yield ["**findings**", *(_change(column, *Applicability) for column in columns.values())]


def _change(column: Column, *kinds: str) -> str:
    before, after = (sum(side.get(kind, 0) for kind in kinds) for side in (column.before, column.after))
    return f"{before:,} → {after:,}"


def label_order(found: Sequence[str]) -> list[str]:
    """Labels in the order of CLASSES."""
    return sorted(found, key=lambda label: (CLASSES.index(label.partition(" (")[0]), label))
