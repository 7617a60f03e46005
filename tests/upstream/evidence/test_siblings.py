"""siblings.md lists the families with the same findings, those of the series first."""

from __future__ import annotations

from dataclasses import replace

from ckpt_surgery.upstream.evidence.siblings import siblings_markdown
from tests.upstream.evidence import evidence_cases as cases


def test_those_of_the_series_come_first_and_many_siblings_are_folded() -> None:
    (ours, other) = cases.ready().siblings
    many = (*(replace(other, family=f"family{number}") for number in range(30)), ours)
    page = siblings_markdown(replace(cases.ready(), siblings=many))
    assert list(cases.folds(page)) == ["31 families"]
    assert [row[0] for row in cases.tables(page)[0][1:]] == ["clvp", *(sibling.family for sibling in many[:-1])]
