"""Every kind has its words, and only the display depends on them."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest

from ckpt_surgery.measure.kinds import PARTIAL_SKIPS, CauseKind, FaultKind, SkipKind
from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import LEVELS, Fault, FaultCause, ModeReport, Skip
from tests.measure.fault_cases import fault, fault_at, why

KINDS = tuple(FaultKind)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_fault_has_a_level_and_both_clauses(kind: FaultKind) -> None:
    sample = fault(kind, "layers.0")
    assert sample.level in LEVELS
    assert sample.expected
    assert sample.seen
    assert str(sample) == f"layers.0: expected {sample.expected}, saw {sample.seen}."
    assert not re.search(r"[{}]", str(sample))


@pytest.mark.parametrize("kind", SkipKind)
def test_every_reason_to_skip_levels_has_a_sentence_and_goes_through_json(kind: SkipKind) -> None:
    details = {"error": "none", "loop": "steps", "precision": "float16", "model": "Toy"}
    details |= {"argument": "cache", "arguments": "mems", "dtypes": "float16", "own": "at model.py:12"}
    skip = Skip(("state", "loop"), kind, {**details, "kept": 2, "reference": 4})
    part = "a part of " if kind in PARTIAL_SKIPS else ""
    assert str(skip).startswith(f"{part}levels state and loop were skipped: ")
    assert not re.search(r"[{}]", str(skip))
    assert Skip.from_dict(json.loads(json.dumps(skip.to_dict()))) == skip
    assert str(replace(skip, levels=("cost",))).startswith(f"{part}level cost was skipped: ")


@pytest.mark.parametrize("kind", CauseKind)
def test_every_kind_of_cause_has_a_sentence_or_a_rule(kind: CauseKind) -> None:
    explained = fault_at("values", explanation=why(kind))
    assert explained.cause.endswith(".") or explained.rule
    assert not re.search(r"[{}]", explained.cause)
    assert "ToyLayer" not in explained.general_cause
    assert "ToyStage" not in explained.general_cause


def test_what_a_template_lacks_is_an_error() -> None:
    with pytest.raises(KeyError):
        str(Fault(FaultKind.GRADIENT_LOST, ("layers.0.weight",)))
    with pytest.raises(KeyError):
        str(FaultCause(CauseKind.PLAIN_BLOCK))


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_goes_through_json_and_back(kind: FaultKind) -> None:
    for sample in (fault(kind, "layers.0"), fault(kind, explanation=why(CauseKind.NESTED_OUTPUT))):
        data = json.loads(json.dumps(sample.to_dict()))
        assert data["kind"] == kind
        assert Fault.from_dict(data) == sample
        assert str(Fault.from_dict(data)) == str(sample)


def test_a_figure_that_json_does_not_know_stays_no_number() -> None:
    sample = fault(FaultKind.GRADIENT_VALUE, error=math.nan)
    report = Report("Toy", modes=(ModeReport("reentrant", (sample,), {}),))
    (_, back), *_ = Report.from_dict(json.loads(report.to_json())).faults
    assert "up to nan" in back.seen


def test_faults_of_two_modes_that_read_the_same_are_shown_once() -> None:
    alike, other = (fault(FaultKind.GRADIENT_VALUE, "a", error=error) for error in (0.411, 0.412))
    modes = (ModeReport("non_reentrant", (alike,), {}), ModeReport("reentrant", (other,), {}))
    report = Report("Toy", modes=modes)
    assert [names for names, _ in report.merged_faults] == [("non_reentrant", "reentrant")]
    further = replace(modes[1], faults=(fault(FaultKind.GRADIENT_VALUE, "a", error=0.5),))
    assert len(replace(report, modes=(modes[0], further)).merged_faults) == 2
