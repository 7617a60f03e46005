"""The findings of `verify` in the installed transformers, by name; docs/coverage/*.md says the same.

One survey for all of it, as the command runs it: each class in a worker process, with a limit on its time.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from ckpt_surgery.measure.report import Report
from ckpt_surgery.survey import survey
from ckpt_surgery.survey.resolve import resolve
from tests.conftest import installed_major

pytestmark = [pytest.mark.slow]

DOCS = Path(__file__).parents[2] / "docs"
BOTH = ("non_reentrant", "reentrant")
REENTRANT = ("reentrant",)
HEALTHY = ("LlamaForCausalLM", "BertModel", "T5ForConditionalGeneration", "MixtralForCausalLM")
BROKEN = re.compile(r"What is broken|What claims no checkpointing, and would be broken")
Known = tuple[str, tuple[str, ...], str, str]  # class, modes, level, and what the fault's text says


IN_5: Sequence[Known] = [
    ("ClvpModelForConditionalGeneration", BOTH, "recompute", "CKPT001"),
    ("MllamaVisionModel", BOTH, "recompute", "CKPT001"),
    ("Gemma4AudioModel", BOTH, "run", "can be switched on"),
    ("PvtV2Model", REENTRANT, "run", "PvtV2EncoderLayer needs gradient"),
    ("PvtV2ForImageClassification", REENTRANT, "set", "PvtV2EncoderLayer needs gradient"),
    ("SEWDModel", REENTRANT, "run", "CKPT003"),
    ("SpeechT5ForSpeechToText", REENTRANT, "run", "CKPT003"),
    ("WavLMModel", REENTRANT, "run", "returns it: its own output"),
    ("MLCDVisionModel", REENTRANT, "run", "CKPT007"),
    ("DebertaV2Model", REENTRANT, "run", "CKPT003"),
    ("Llama4VisionModel", REENTRANT, "set", "37 of 41 gradients"),
    ("Sam2Model", REENTRANT, "set", "CKPT003"),
    ("Gemma3nForCausalLM", REENTRANT, "values", "shared_kv_states"),
    ("Gemma4ForCausalLM", REENTRANT, "values", "shared_kv_states"),
    ("MixtralForCausalLM (router loss)", REENTRANT, "values", "router logits"),
    ("SwinModel", BOTH, "recompute", "CKPT006"),
    ("MobileViTModel", BOTH, "state", "batch normalisation"),
    ("SwiftFormerModel", BOTH, "state", "batch normalisation"),
    ("Wav2Vec2ConformerModel", BOTH, "state", "batch normalisation"),
]
IN_4: Sequence[Known] = [
    ("GPTBigCodeForCausalLM", BOTH, "recompute", "CKPT001"),
    ("SwiftFormerModel", BOTH, "recompute", "CKPT001"),
    ("LayoutLMModel", REENTRANT, "set", "CKPT003"),
    ("AltCLIPModel", REENTRANT, "set", "CKPT003"),
    ("ChineseCLIPModel", REENTRANT, "set", "CKPT003"),
    ("WhisperForConditionalGeneration", REENTRANT, "run", "WhisperDecoderLayer by keyword"),
    ("LiltModel", REENTRANT, "set", "CKPT010"),
]


@dataclass(frozen=True)
class Page:
    """The contents of a page: the number of classes by verdict, each fault as (class, mode, level), the sound classes.

    `after` is what became of broken classes after `wrap_blocks`, as (class, verdict).
    """

    counts: Mapping[str, int]
    faults: frozenset[tuple[str, str, str]]
    sound: tuple[str, ...]
    after: frozenset[tuple[str, str]]


def read(text: str) -> Page:
    """Read a page of docs/."""
    parts = re.split(r"^## ", text, flags=re.MULTILINE)
    results = rows_of(parts[0].partition("after wrap_blocks")[0])
    counts = {row[0]: int(row[1].replace(",", "")) for row in results if row[0] in ("failed", "ok", "unsupported")}
    broken = [row for part in parts if BROKEN.match(part) for row in rows_of(part)]
    (sound,) = re.findall(r"^## What works$(.*?)^</details>", text, re.DOTALL | re.MULTILINE)
    names = tuple(re.findall(r"(?<= )`([^`]+)`", sound.replace("| `", "|`")))
    return Page(counts, frozenset(faults_in(broken)), names, frozenset(afters_in(broken)))


def rows_of(text: str) -> list[list[str]]:
    """Read the rows of the tables in a text, without their heads."""
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:2] == "| "]
    heads = {at for at, row in enumerate(rows, -1) if row[0] == "---"}
    return [row for at, row in enumerate(rows) if at not in heads and row[0] != "---"]


def faults_in(rows: Sequence[Sequence[str]]) -> Iterator[tuple[str, str, str]]:
    for row in rows:
        yield from ((row[0].strip("`"), mode, row[2]) for mode in row[1].split())


def afters_in(rows: Sequence[Sequence[str]]) -> Iterator[tuple[str, str]]:
    yield from ((row[0].strip("`"), row[5]) for row in rows)


@pytest.fixture(scope="module")
def page() -> Page:
    return read((DOCS / f"coverage/{importlib.metadata.version('transformers')}.md").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def reports(page: Page) -> Mapping[str, Report]:
    """Verify the classes that are named here, and of those that the page calls broken or sound a few more."""
    named = {name for name, *_ in (*IN_5, *IN_4)} & {label for label, *_ in page.faults}
    unnamed = sorted({label for label, *_ in page.faults} - named)
    labels = {*named, *HEALTHY, *unnamed[::50], *page.sound[::400]}
    targets = resolve(sorted({label.partition(" ")[0] for label in labels}))
    return {report.label: report for report in survey([t for t in targets if t.label in labels], fix=True)}


def check(report: Report, modes: tuple[str, ...], level: str, text: str) -> None:
    assert not report.problem, report.problem
    for mode in modes:
        matches = [fault for of, fault in report.faults if (of, fault.level) == (mode, level)]
        assert any(text in str(fault) for fault in matches), f"{mode}: {report}"
    for mode in set(BOTH) - set(modes):
        assert all(of != mode for of, _ in report.faults), f"{mode}: {report}"


def named(cases: Sequence[Known]) -> pytest.MarkDecorator:
    ids = [f"{name}, {level}" for name, _, level, _ in cases]
    return pytest.mark.parametrize(("name", "modes", "level", "text"), cases, ids=ids)


@pytest.mark.torch
@named(IN_5)
def test_5_has_this_fault(
    reports: Mapping[str, Report], name: str, modes: tuple[str, ...], level: str, text: str
) -> None:
    check(reports[name], modes, level, text)


@pytest.mark.transformers4
@named(IN_4)
def test_4_has_this_fault(
    reports: Mapping[str, Report], name: str, modes: tuple[str, ...], level: str, text: str
) -> None:
    check(reports[name], modes, level, text)


@pytest.mark.both
@pytest.mark.parametrize("name", HEALTHY)
def test_neither_has_a_fault_in(reports: Mapping[str, Report], name: str) -> None:
    assert reports[name].ok, reports[name]


@pytest.mark.both
def test_the_page_says_what_is_found(reports: Mapping[str, Report], page: Page) -> None:
    measured = {(label, mode, fault.level) for label, report in reports.items() for mode, fault in report.faults}
    said = {fault for fault in page.faults if fault[0] in reports}
    assert measured == said
    assert len(reports) > len(HEALTHY) + len({label for label, *_ in said})
    assert sum(page.counts.values()) >= (560 if installed_major("transformers") > 4 else 360)


@pytest.mark.both
def test_the_page_says_what_becomes_of_it_after_wrap_blocks(reports: Mapping[str, Report], page: Page) -> None:
    said = {row for row in page.after if row[0] in reports}
    assert said == {(label, reports[label].after) for label, _ in said}
    broken = {label for label, _ in said}
    assert {report.after for label, report in reports.items() if label not in broken} == {"ok"}
