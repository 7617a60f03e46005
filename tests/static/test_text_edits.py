"""Edits: of repairs that touch the same text one waits, and each edit is made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_surgery import apply
from ckpt_surgery.codemods.facts.syntax import Span
from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.codemods.repair import Definition, ImportName, Occurrence, ReplaceName, SourceRepair
from ckpt_surgery.static.text_edits import apply_edits, choose_repairs, edits_of
from tests.codemods.snippets import BAR, BY_KEYWORD, BY_POSITION, CHILD, INLINE, PARENT, PARENT_LAYERED, PLAIN
from tests.codemods.tools import FOO, found, texts, tree


def repair(*place: int, path: str = "a.py", new: str = "x") -> SourceRepair:
    return ReplaceName(path, Span(*place), Occurrence(Definition()), new)


def finding(*repairs: SourceRepair, applicability: Applicability = Applicability.SAFE) -> Finding:
    return Finding("CKPT003", "a.py", 1, 1, "Foo", "message", applicability, "foo", repairs)


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        (repair(1, 0, 1, 2), repair(1, 1, 1, 3), False),
        (repair(1, 0, 1, 2), repair(1, 0, 1, 2, new="y"), False),
        (repair(1, 0, 1, 2), repair(1, 0, 1, 2), True),
        (repair(1, 0, 1, 2), repair(1, 2, 1, 3), True),
        (repair(1, 0, 3, 9), repair(2, 3, 2, 4), False),
        (repair(1, 0, 1, 4), ImportName("a.py", None, None, "os", "path", 119), True),
        (repair(1, 0, 1, 2), repair(1, 0, 1, 2, path="b.py"), True),
    ],
    ids=[
        "overlap",
        "same place",
        "same repair",
        "side by side",
        "inside",
        "an import",
        "two files",
    ],
)
def test_two_findings_are_repaired_together_if_their_repairs_do_not_meet(
    first: SourceRepair, second: SourceRepair, together: bool
) -> None:
    assert len(choose_repairs([finding(first), finding(second)], False, ())) == 1 + together


def test_a_repair_of_several_files_is_dropped_where_one_of_them_is_frozen() -> None:
    findings = [finding(repair(1, 0, 1, 1), repair(1, 0, 1, 1, path="b.py")), finding(repair(5, 0, 5, 6))]
    assert choose_repairs(findings, False, {"b.py"}) == [findings[1]]


def repaired(root: Path, finding: Finding) -> dict[str, str]:
    """Return the texts of a tree after the edits of one finding."""
    after = texts(root)
    edits = edits_of([finding])[finding]
    for name, text in after.items():
        after[name] = apply_edits(text, [edit for edit in edits if edit.path == str(root / name)])
    return after


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("text", [PLAIN, INLINE, BY_KEYWORD, BY_POSITION])
def test_the_edits_of_a_finding_are_what_apply_changes(tmp_path: Path, text: str, newline: str) -> None:
    root = tree(tmp_path, text.replace("\n", newline))
    (only,) = [finding for finding in found(root) if finding.code == "CKPT002" or text != INLINE]
    after = repaired(root, only)
    apply([root], select=[only.code], jobs=1)
    assert texts(root) == after != {FOO: text}


def test_edits_name_each_file_and_leave_what_a_repair_does_not_change(tmp_path: Path) -> None:
    root = tree(tmp_path, {FOO: CHILD, BAR: PARENT})
    (only,) = found(root, "CKPT001")
    assert repaired(root, only) == {FOO: CHILD, BAR: PARENT_LAYERED}
    root = tree(tmp_path / "1", BY_KEYWORD)
    (only,) = found(root)
    (edit,) = edits_of([only])[only]
    assert BY_KEYWORD[edit.start : edit.end].strip().startswith("hidden_states = layer(hidden_states=hidden_states, ")
    assert BY_KEYWORD[edit.start : edit.end].count("\n") == 1


def test_a_file_that_is_gone_or_another_has_no_edits(tmp_path: Path) -> None:
    root = tree(tmp_path, INLINE)
    findings = [finding for finding in found(root) if finding.code == "CKPT002"]
    (root / FOO).write_text("x = 1\n")
    assert edits_of(findings) == {findings[0]: []}
    (root / FOO).unlink()
    assert edits_of(findings) == {findings[0]: []}
