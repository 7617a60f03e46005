"""Which series a note goes to is decided by its file, whatever it says."""

from __future__ import annotations

import pytest

from ckpt_surgery.static.results import FileChange, Note
from ckpt_surgery.upstream.options import GroupBy
from ckpt_surgery.upstream.plan.grouping import series_of
from ckpt_surgery.upstream.plan.plan import PlannedCommit


def path(family: str) -> str:
    return f"src/transformers/models/{family}/modeling_{family}.py"


def commit(family: str) -> PlannedCommit:
    return PlannedCommit((family,), (FileChange(path(family), "before", "after", ()),), ())


@pytest.mark.parametrize("line", [0, 12])
def test_each_series_has_the_notes_of_its_files(line: int) -> None:
    notes = [Note(path(family), "left alone: it would not settle", line) for family in ("ash", "birch")]
    series = series_of([commit("ash"), commit("birch")], (), notes, GroupBy.FAMILY)
    assert {entry.name: entry.notes for entry in series} == {"ash": (notes[0],), "birch": (notes[1],)}
