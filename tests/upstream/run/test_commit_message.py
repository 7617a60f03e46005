"""The message of each kind of commit, as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.static.results import FileChange
from ckpt_surgery.upstream.evidence.results import RegressionKind, RegressionTest
from ckpt_surgery.upstream.plan.plan import PlannedCommit
from ckpt_surgery.upstream.run.series import TRAILER, message_of
from ckpt_surgery.version import __version__
from tests.snapshots import check_snapshot

SNAPSHOTS = Path(__file__).parent / "snapshots"
OAK = "src/transformers/models/oak/modeling_oak.py"
CODES = ("CKPT001", "CKPT002", "CKPT003", "CKPT004", "CKPT005", "CKPT006")
FINDINGS = tuple(Finding(code, OAK, 3, 1, "OakLayer", "", Applicability.SAFE, "oak") for code in CODES)
PLANNED = PlannedCommit(("oak", "elm"), (FileChange(OAK, "", "x", CODES),), (*FINDINGS, FINDINGS[0]))
REMOVED = RegressionTest("oak", RegressionKind.EXCEPTION_REMOVED)
ADDED = RegressionTest("elm", RegressionKind.ADDED, tests=("tests/elm.py::T::test_a", "tests/elm.py::T::test_b"))
OTHERS = [RegressionTest("elm", RegressionKind.COVERED), RegressionTest("elm", RegressionKind.NONE, reason="none")]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "repair",
            message_of(
                PLANNED, source=True, regenerated=["a.py"], by_checkers=["b.py", "c.py"], tests=[REMOVED, ADDED]
            ),
        ),
        ("plain_repair", message_of(PLANNED, source=True, regenerated=[], by_checkers=[], tests=OTHERS)),
        ("tests_alone", message_of(PLANNED, source=False, regenerated=[], by_checkers=[], tests=[ADDED])),
    ],
)
def test_the_message_is_the_snapshot(name: str, message: str) -> None:
    check_snapshot(message.replace(__version__, "VERSION"), SNAPSHOTS / f"commit_message_{name}.txt")


@pytest.mark.parametrize("source", [True, False])
def test_every_message_discloses_the_program(source: bool) -> None:
    message = message_of(PLANNED, source=source, regenerated=[], by_checkers=[], tests=[])
    assert message.endswith(f"\n\n{TRAILER} {__version__}\n")
