"""What `verify` finds in the installed release of transformers, by name: the faults that are known to be there.

One survey for all of it, as the command runs it: each class in a worker process, with a limit on its time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from ckpt_surgery.verification.results import Fault, Report
from ckpt_surgery.verification.survey import survey
from ckpt_surgery.verification.survey.targets import resolve

pytestmark = [pytest.mark.slow]

BOTH = ("non_reentrant", "reentrant")
REENTRANT = ("reentrant",)
NORMS = "batch normalisation"
Expected = tuple[str, tuple[str, ...], str, str]  # class, modes, level, and what the fault's text says

IN_5: Sequence[Expected] = [
    ("ClvpModelForConditionalGeneration", BOTH, "recompute", "CKPT001"),
    ("MllamaVisionModel", BOTH, "recompute", "CKPT001"),
    ("Gemma4AudioModel", BOTH, "run", "can be switched on"),
    ("PvtV2Model", REENTRANT, "run", "PvtV2EncoderLayer needs gradient"),
    ("PvtV2ForImageClassification", REENTRANT, "set", "PvtV2EncoderLayer needs gradient"),
    ("SEWDModel", REENTRANT, "run", "CKPT003"),
    ("SpeechT5ForSpeechToText", REENTRANT, "run", "CKPT003"),
    ("WavLMModel", REENTRANT, "run", "does not end"),
    ("MLCDVisionModel", REENTRANT, "run", "CKPT007"),
    ("DebertaV2Model", REENTRANT, "run", "CKPT003"),
    ("Llama4VisionModel", REENTRANT, "set", "37 of 41 gradients"),
    ("Sam2Model", REENTRANT, "set", "CKPT003"),
    ("Gemma3nForCausalLM", REENTRANT, "values", "shared_kv_states"),
    ("Gemma4ForCausalLM", REENTRANT, "values", "shared_kv_states"),
    ("MixtralForCausalLM (router loss)", REENTRANT, "values", "router logits"),
    ("SwinModel", BOTH, "recompute", "CKPT006"),
    ("SwiftFormerModel", BOTH, "state", NORMS),
    ("ParakeetForCTC", BOTH, "state", NORMS),
    ("Wav2Vec2ConformerModel", BOTH, "state", NORMS),
    ("LasrForCTC", BOTH, "state", NORMS),
]
IN_4: Sequence[Expected] = [
    ("GPTBigCodeForCausalLM", BOTH, "recompute", "CKPT001"),
    ("SwiftFormerModel", BOTH, "recompute", "CKPT001"),
    ("LayoutLMModel", REENTRANT, "set", "CKPT003"),
    ("AltCLIPModel", REENTRANT, "set", "CKPT003"),
    ("ChineseCLIPModel", REENTRANT, "set", "CKPT003"),
    ("WhisperForConditionalGeneration", REENTRANT, "run", "WhisperDecoderLayer by keyword"),
    ("LiltModel", REENTRANT, "set", "CKPT010"),
]
HEALTHY = ("LlamaForCausalLM", "BertModel", "T5ForConditionalGeneration", "MixtralForCausalLM")


def look_at(expected: Sequence[Expected]) -> dict[str, Report]:
    """The reports of these classes and of the healthy ones, by label."""
    names = sorted({name.partition(" ")[0] for name, *_ in expected} | set(HEALTHY))
    return {report.label: report for report in survey(resolve(names))}


@pytest.fixture(scope="module")
def in_5() -> Mapping[str, Report]:
    return look_at(IN_5)


@pytest.fixture(scope="module")
def in_4() -> Mapping[str, Report]:
    return look_at(IN_4)


def faults(report: Report, mode: str) -> list[Fault]:
    assert not report.problem, report.problem
    return [fault for of, fault in report.faults if of == mode]


def check(report: Report, modes: tuple[str, ...], level: str, text: str) -> None:
    for mode in modes:
        found = [fault for fault in faults(report, mode) if fault.level == level]
        assert any(text in str(fault) for fault in found), f"{mode}: {report}"
    for mode in set(BOTH) - set(modes):
        assert not faults(report, mode), f"{mode}: {report}"


@pytest.mark.torch
@pytest.mark.parametrize(("name", "modes", "level", "text"), IN_5, ids=[f"{n}-{level}" for n, _, level, _ in IN_5])
def test_5_has_this_fault(
    in_5: Mapping[str, Report], name: str, modes: tuple[str, ...], level: str, text: str
) -> None:
    check(in_5[name], modes, level, text)


@pytest.mark.transformers4
@pytest.mark.parametrize(("name", "modes", "level", "text"), IN_4, ids=[f"{n}-{level}" for n, _, level, _ in IN_4])
def test_4_has_this_fault(
    in_4: Mapping[str, Report], name: str, modes: tuple[str, ...], level: str, text: str
) -> None:
    check(in_4[name], modes, level, text)


@pytest.mark.torch
@pytest.mark.parametrize("name", HEALTHY)
def test_5_has_no_fault_in(in_5: Mapping[str, Report], name: str) -> None:
    assert in_5[name].ok, in_5[name]


@pytest.mark.transformers4
@pytest.mark.parametrize("name", HEALTHY)
def test_4_has_no_fault_in(in_4: Mapping[str, Report], name: str) -> None:
    assert in_4[name].ok, in_4[name]
