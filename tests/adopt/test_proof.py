"""Two measurements of a class prove the repair between them; anything that got worse is seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ckpt_surgery.adopt.proof import ClassProof, ClassVerdict, Decision
from ckpt_surgery.measure.kinds import FaultKind
from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import MODES, Fault
from tests.adopt.examples import BAD, GOOD, LOST, REENTRANT_BAD, UNBUILT, UNSUPPORTED, adoption, mode_report, report
from tests.measure.fault_cases import fault_at


def both(*faults: Fault, kept: int = 1024) -> Report:
    return report(*(mode_report(mode, *faults, kept=kept) for mode in MODES))


def not_recomputed(*names: str) -> Fault:
    return replace(fault_at("recompute"), subjects=names)


NO_LOOP = report(*(mode_report(mode, skipped=("loop", "ranks")) for mode in MODES))
KEPT = Fault(FaultKind.KEPT_BYTES, (), {"reference": 4096, "kept": 2048, "best": 1024})


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (GOOD, None, ClassVerdict.OK),
        (BAD, None, ClassVerdict.FAILED),
        (UNBUILT, None, ClassVerdict.NOT_MEASURED),
        (UNSUPPORTED, None, ClassVerdict.UNSUPPORTED),
        (GOOD, GOOD, ClassVerdict.OK),
        (BAD, GOOD, ClassVerdict.REPAIRED),
        (REENTRANT_BAD, GOOD, ClassVerdict.REPAIRED),
        (BAD, REENTRANT_BAD, ClassVerdict.IMPROVED),
        (BAD, both(LOST), ClassVerdict.IMPROVED),
        (REENTRANT_BAD, REENTRANT_BAD, ClassVerdict.FAILED),
        (GOOD, REENTRANT_BAD, ClassVerdict.WORSE),
        (REENTRANT_BAD, BAD, ClassVerdict.WORSE),
        (both(LOST), both(fault_at("values")), ClassVerdict.WORSE),
        (GOOD, UNBUILT, ClassVerdict.WORSE),
        (BAD, UNBUILT, ClassVerdict.WORSE),
        (UNBUILT, UNBUILT, ClassVerdict.NOT_MEASURED),
        (GOOD, NO_LOOP, ClassVerdict.WORSE),
        (NO_LOOP, both(fault_at("loop")), ClassVerdict.WORSE),
        (GOOD, report(mode_report("non_reentrant")), ClassVerdict.WORSE),
        (both(fault_at("run")), both(LOST), ClassVerdict.IMPROVED),
        (both(fault_at("run")), GOOD, ClassVerdict.REPAIRED),
        (both(LOST), both(fault_at("run")), ClassVerdict.WORSE),
        (both(not_recomputed("a")), both(not_recomputed("a", "b")), ClassVerdict.WORSE),
        (both(not_recomputed("a", "b")), both(not_recomputed("a")), ClassVerdict.FAILED),
        (both(KEPT, kept=2048), both(KEPT, kept=4096), ClassVerdict.WORSE),
        (both(KEPT, kept=2048), both(KEPT, kept=2048), ClassVerdict.FAILED),
    ],
)
def test_the_verdict_on_a_class(before: Report, after: Report | None, verdict: ClassVerdict) -> None:
    assert ClassProof(before, after).verdict is verdict


@pytest.mark.parametrize(
    ("proofs", "decision", "clean"),
    [
        ((), Decision.NOT_PROVED, False),
        ((ClassProof(UNBUILT),), Decision.NOT_PROVED, False),
        ((ClassProof(BAD, GOOD),), Decision.PROVED, False),
        ((ClassProof(BAD, GOOD), ClassProof(UNBUILT, UNBUILT)), Decision.PROVED, False),
        ((ClassProof(BAD, GOOD), ClassProof(GOOD, BAD)), Decision.WORSE, False),
    ],
)
def test_what_is_decided(tmp_path: Path, proofs: tuple[ClassProof, ...], decision: Decision, clean: bool) -> None:
    found = adoption(tmp_path, *proofs)
    assert (found.decision, found.clean) == (decision, clean)


def test_a_folder_without_faults_is_clean_unless_its_proof_fails(tmp_path: Path) -> None:
    for proofs, clean in ((), True), ((ClassProof(GOOD),), True), ((ClassProof(BAD),), False):
        found = adoption(tmp_path, *proofs, shape="healthy")
        assert (found.decision, found.clean) == (Decision.NOTHING_TO_REPAIR, clean)


def test_a_repair_that_is_written_counts_for_what_it_leaves(tmp_path: Path) -> None:
    for after, clean in (GOOD, True), (REENTRANT_BAD, False):
        found = replace(adoption(tmp_path, ClassProof(BAD, after)), written=True)
        assert found.clean is clean


def test_a_refused_repair_is_not_what_a_card_describes(tmp_path: Path) -> None:
    (described,) = adoption(tmp_path, ClassProof(GOOD, BAD)).described
    assert described.final is GOOD
