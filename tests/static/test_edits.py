"""Edits: repairs that touch the same text wait, and edits are made once each."""

from __future__ import annotations

import pytest

from ckpt_surgery.codemods.finding import Applicability, Edit, Finding
from ckpt_surgery.static.edits import apply_edits, choose_repairs


def finding(*edits: Edit, applicability: Applicability = Applicability.SAFE) -> Finding:
    return Finding("CKPT003", "a.py", 1, 1, "Foo", "message", applicability, "foo", edits)


def test_edits_are_made_from_the_last_to_the_first() -> None:
    edits = [Edit("a.py", 0, 1, "XX"), Edit("a.py", 4, 5, ""), Edit("a.py", 2, 2, "-"), Edit("a.py", 0, 1, "XX")]
    assert apply_edits("abcdef", edits) == "XXb-cdf"


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        ((0, 2, "x"), (1, 3, "y"), False),
        ((0, 2, "x"), (0, 2, "y"), False),
        ((0, 2, "x"), (0, 2, "x"), True),
        ((0, 2, "x"), (2, 3, "y"), True),
        ((0, 9, "x"), (3, 4, "y"), False),
        ((1, 1, "x"), (1, 1, "y"), False),
        ((0, 4, "x"), (2, 2, "y"), False),
    ],
    ids=["overlap", "same place", "same edit", "side by side", "inside", "two insertions", "insertion inside"],
)
def test_two_findings_are_repaired_together_where_their_edits_do_not_meet(
    first: tuple[int, int, str], second: tuple[int, int, str], together: bool
) -> None:
    findings = [finding(Edit("a.py", *first)), finding(Edit("a.py", *second))]
    assert len(choose_repairs(findings, False, ())) == 1 + together


@pytest.mark.parametrize(
    ("applicability", "unsafe", "expected"),
    [
        (Applicability.SAFE, False, 1),
        (Applicability.UNSAFE, False, 0),
        (Applicability.UNSAFE, True, 1),
        (Applicability.INFO, True, 0),
        (Applicability.UNKNOWN, True, 0),
    ],
)
def test_only_repairs_that_were_asked_for_are_chosen(
    applicability: Applicability, unsafe: bool, expected: int
) -> None:
    findings = [finding(Edit("a.py", 0, 1, "x"), applicability=applicability)]
    assert len(choose_repairs(findings, unsafe, ())) == expected


def test_a_repair_of_several_files_is_dropped_where_one_of_them_is_frozen() -> None:
    findings = [finding(Edit("a.py", 0, 1, "x"), Edit("b.py", 0, 1, "x")), finding(Edit("a.py", 5, 6, "x"))]
    assert choose_repairs(findings, False, {"b.py"}) == [findings[1]]
