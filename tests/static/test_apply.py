"""`apply`: the files it writes and those it leaves alone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from ckpt_surgery import apply
from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.codemods.repair import Definition, DeriveLayer, SourceRepair
from ckpt_surgery.codemods.repairs.parts import Part
from ckpt_surgery.static import apply as apply_module
from ckpt_surgery.static import reading
from ckpt_surgery.static.reading import ParsedFile
from ckpt_surgery.static.results import ApplyResult, FileChange, Problem
from ckpt_surgery.static.snapshot import Snapshot
from ckpt_surgery.static.write import write_atomically
from tests.codemods.snippets import (
    BAR,
    BY_KEYWORD,
    CALL,
    CHILD,
    INLINE,
    LAYERED,
    PARENT,
    PARENT_LAYERED,
    PLAIN,
)
from tests.codemods.tools import FOO, found, repair, texts, tree

FIXED = LAYERED.replace(CALL, "layer(hidden_states, attention_mask=attention_mask)")
"""INLINE and BY_KEYWORD after their repair."""


def codes(result: ApplyResult) -> dict[str, tuple[str, ...]]:
    return {change.path: change.codes for change in result.changes}


def test_a_repair_is_written_and_reported(tmp_path: Path) -> None:
    root = tree(tmp_path, INLINE)
    result = repair(root)
    assert texts(root) == {FOO: FIXED}
    (change,) = result.changes
    assert change == FileChange(str(root / FOO), INLINE, FIXED, ("CKPT002", "CKPT003"), change.repairs)
    assert [{type(repair).__name__ for repair in made} for made in change.repairs] == [
        {"ImportName", "MakeLayer", "KeepElseBranch"},
        {"PassArguments"},
    ]
    assert [finding.code for finding in result.findings] == ["CKPT002", "CKPT003"]
    assert (result.left, result.problems, result.notes, result.files, result.written) == ((), (), (), 1, True)


def test_write_false_tells_what_write_would_do_and_ends_of_files_stay(tmp_path: Path) -> None:
    root = tree(tmp_path, INLINE)
    before = os.stat(root / FOO)
    result = apply([root], write=False, jobs=1)
    assert os.stat(root / FOO) == before
    assert not result.written
    assert [change.after for change in result.changes] == [FIXED]
    root = tree(tmp_path / "1", INLINE.rstrip("\n"))
    repair(root)
    assert texts(root) == {FOO: FIXED.rstrip("\n")}


def test_the_difference_can_be_applied_by_git(tmp_path: Path) -> None:
    root = tree(tmp_path, INLINE.replace("    def __init__", "    \f\n    NAME = '\u2028'\n\n    def __init__", 1))
    (change,) = apply([root], write=False, jobs=1).changes
    diff = change.diff.replace(str(root).lstrip("/") + "/", "")
    done = subprocess.run(["git", "apply", "-"], cwd=root, input=diff.encode(), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert texts(root) == {FOO: change.after}


def test_unsafe_repairs_are_made_only_when_asked_for(tmp_path: Path) -> None:
    text = INLINE.replace("self.training:", "self.training and attention_mask is None:")
    root = tree(tmp_path, text)
    result = repair(root)
    assert "_gradient_checkpointing_func" in texts(root)[FOO]
    assert [finding.applicability for finding in result.left if finding.code == "CKPT002"] == [Applicability.UNSAFE]
    repair(root, unsafe=True)
    assert texts(root) == {FOO: FIXED}


# -- one rule alone

ALL = INLINE.replace(
    "        return hidden_states\n",
    "        for layer in self.layers:\n"
    "            hidden_states = layer(hidden_states, attention_mask, past_key_values)\n"
    "        return hidden_states\n",
)


@pytest.mark.parametrize("code", ["CKPT001", "CKPT002", "CKPT003", "CKPT004", "CKPT005"])
def test_a_rule_alone_makes_no_edit_of_another(tmp_path: Path, code: str) -> None:
    root = tree(tmp_path, {FOO: ALL, "models/plain/modeling_plain.py": PLAIN})
    result = repair(root, select=(code,), unsafe=True)
    assert {rule_code for change in result.changes for rule_code in change.codes} <= {code}
    assert not [finding for finding in found(root, code) if finding.applicability is Applicability.SAFE]
    after = texts(root)
    kept = {
        "CKPT001": "class FooLayer(nn.Module)" in after["models/plain/modeling_plain.py"],
        "CKPT002": "_gradient_checkpointing_func" in after[FOO],
        "CKPT003": "hidden_states=hidden_states" in after[FOO],
        "CKPT004": "attention_mask, past_key_values)" in after[FOO],
    }
    assert kept == {rule_code: rule_code != code for rule_code in kept}


# -- how a file is written

LONG = BY_KEYWORD.replace(
    "attention_mask=attention_mask)", "attention_mask=attention_mask,  # why\n                past_key_values=None)"
)


@pytest.mark.parametrize("text", [PLAIN, INLINE, LONG], ids=["base class", "branch", "arguments one a line"])
def test_line_endings_stay(tmp_path: Path, text: str) -> None:
    unix, windows = tree(tmp_path / "unix", text), tree(tmp_path / "windows", text.replace("\n", "\r\n"))
    assert repair(unix).changes
    repair(windows)
    assert texts(windows)[FOO] == texts(unix)[FOO].replace("\n", "\r\n")


@pytest.mark.parametrize(
    ("encoding", "head"),
    [
        ("utf-8", "# café\n"),
        ("utf-8-sig", "# café\n"),
        ("latin-1", "# -*- coding: latin-1 -*-\n# café\n"),
        ("cp1252", "#!/usr/bin/env python\n# coding: cp1252\n# “café”\n"),
    ],
)
def test_the_encoding_stays(tmp_path: Path, encoding: str, head: str) -> None:
    root = tree(tmp_path, "")
    text = head + INLINE.replace("for layer in", "name = 'é'\n        for layer in")
    (root / FOO).write_bytes(text.encode(encoding))
    result = apply([root], jobs=1)
    assert len(result.changes) == 1
    expected = head + FIXED.replace("for layer in", "name = 'é'\n        for layer in")
    assert (root / FOO).read_bytes() == expected.encode(encoding)
    assert apply([root], jobs=1).changes == ()


def test_what_is_not_ascii_and_tabs_stay(tmp_path: Path) -> None:
    text = BY_KEYWORD.replace("hidden_states = layer(", 'name = "größe ∑ 𝛴"; hidden_states = layer(')
    root = tree(tmp_path, text)
    repair(root)
    line = 'name = "größe ∑ 𝛴"; hidden_states = layer(hidden_states, attention_mask=attention_mask)'
    assert line in texts(root)[FOO]

    def tabbed(text: str) -> str:
        lines = text.split("\n")
        depths = [len(line) - len(line.lstrip(" ")) for line in lines]
        return "\n".join("\t" * (depth // 4) + line.lstrip(" ") for depth, line in zip(depths, lines, strict=True))

    root = tree(tmp_path / "1", tabbed(INLINE))
    repair(root)
    assert texts(root) == {FOO: tabbed(FIXED)}


# -- what is left alone


def test_a_read_only_file_is_reported_and_left(tmp_path: Path) -> None:
    root = tree(tmp_path, {FOO: INLINE, "models/b/modeling_b.py": BY_KEYWORD})
    (root / FOO).chmod(0o444)
    result = apply([root], jobs=1)
    assert texts(root) == {FOO: INLINE, "models/b/modeling_b.py": FIXED}
    (problem,) = result.problems
    assert problem.path == str(root / FOO)
    assert "read-only" in problem.message


def test_a_repair_that_needs_a_read_only_file_is_not_half_made(tmp_path: Path) -> None:
    branch = INLINE[INLINE.index("            if self.gradient") : INLINE.index("        return hidden_states\n", 900)]
    child = CHILD.replace("            hidden_states = layer(hidden_states, attention_mask)\n", branch)
    assert child != CHILD
    root = tree(tmp_path, {FOO: child, BAR: PARENT})
    (root / BAR).chmod(0o444)
    result = apply([root], select=["CKPT002"], jobs=1)
    assert texts(root) == {FOO: child, BAR: PARENT}
    assert [problem.path for problem in result.problems] == [str(root / BAR)]


@pytest.mark.parametrize("option", ["ignore", "exclude"])
def test_what_is_left_out_is_not_repaired(tmp_path: Path, option: str) -> None:
    root = tree(tmp_path, PLAIN)
    values: dict[str, Any] = {"ignore": ["CKPT001"], "exclude": ["foo"]}
    assert apply([root], jobs=1, **{option: values[option]}).changes == ()
    assert texts(root) == {FOO: PLAIN}


def test_a_file_that_changes_underneath_is_reported_and_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(tmp_path, {FOO: INLINE, "models/b/modeling_b.py": BY_KEYWORD})

    def late(path: str, *texts: str, **options: Any) -> Problem | None:
        (root / FOO).write_text("x = 1\n")
        return write_atomically(path, *texts, **options)

    monkeypatch.setattr(apply_module, "write_atomically", late)
    result = apply([root], jobs=1)
    assert texts(root) == {FOO: "x = 1\n", "models/b/modeling_b.py": FIXED}
    (problem,) = result.problems
    assert "changed on disk" in problem.message
    assert list(codes(result)) == [str(root / "models/b/modeling_b.py")]


def test_a_file_that_does_not_parse_does_not_hinder_others(tmp_path: Path) -> None:
    root = tree(tmp_path, {FOO: INLINE, "models/bad/modeling_bad.py": "def checkpointing(:\n"})
    result = apply([root], jobs=1)
    assert texts(root) == {FOO: FIXED, "models/bad/modeling_bad.py": "def checkpointing(:\n"}
    assert [problem.path for problem in result.problems] == [str(root / "models/bad/modeling_bad.py")]


def test_a_result_that_does_not_parse_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(tmp_path, {FOO: INLINE, "models/b/modeling_b.py": BY_KEYWORD})
    real = reading.ParsedFile.rewritten_parts

    def broken(file: ParsedFile, repairs: Collection[SourceRepair]) -> list[tuple[Part, str]] | None:
        parts = real(file, repairs) or []
        return [(part, after + ("(" if "_func(" in file.source.text else "")) for part, after in parts]

    monkeypatch.setattr(reading.ParsedFile, "rewritten_parts", broken)
    result = apply([root], jobs=1)
    assert texts(root) == {FOO: INLINE, "models/b/modeling_b.py": FIXED}
    assert any(FOO in note.path and "parse" in note.text for note in result.notes)


def test_a_file_that_never_settles_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(tmp_path, {FOO: INLINE, "models/b/modeling_b.py": BY_KEYWORD})
    real = Snapshot.findings_and_bugs

    def restless(self: Snapshot, *options: object) -> tuple[list[Finding], dict[str, list[Problem]]]:
        one_more = DeriveLayer(str(root / FOO), None, Definition("FooLayer"), "AgainLayer", "Again.")
        again = Finding("CKPT001", str(root / FOO), 1, 1, "Foo", "again", Applicability.SAFE, "foo", (one_more,))
        findings, bugs = real(self, *options)  # type: ignore[arg-type]
        return [*findings, again], bugs

    monkeypatch.setattr(Snapshot, "findings_and_bugs", restless)
    result = apply([root], jobs=1)
    assert texts(root) == {FOO: INLINE, "models/b/modeling_b.py": FIXED}
    assert any(FOO in note.path and "second run" in note.text for note in result.notes)
    assert {finding.path for finding in result.repaired} == {str(root / "models/b/modeling_b.py")}
    assert {finding.path for finding in result.left} == {str(root / FOO)}
    assert len([finding for finding in result.left if finding.message == "again"]) == 1


def test_an_interrupt_leaves_every_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"models/m{n}/modeling_m{n}.py" for n in range(4)]
    root = tree(tmp_path, dict.fromkeys(names, INLINE))
    real = os.replace
    done: list[str] = []

    def interrupted(source: str, target: str) -> None:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(target)
        real(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        apply([root], jobs=1, cache=False)
    after = texts(root)
    assert sorted(after.values()) == sorted([INLINE] * 2 + [FIXED] * 2)
    assert not [path for path in root.rglob("*") if path.is_file() and path.suffix != ".py"]


# -- several files


def test_the_parent_in_another_file_is_repaired(tmp_path: Path) -> None:
    root = tree(tmp_path, {FOO: CHILD, BAR: PARENT})
    result = repair(root)
    assert texts(root) == {FOO: CHILD, BAR: PARENT_LAYERED}
    assert codes(result) == {str(root / BAR): ("CKPT001",)}


def test_a_parent_outside_the_given_paths_is_not_touched(tmp_path: Path) -> None:
    branch = INLINE[INLINE.index("            if self.gradient") : INLINE.index("        return hidden_states\n", 900)]
    child = CHILD.replace("            hidden_states = layer(hidden_states, attention_mask)\n", branch)
    root = tree(tmp_path, {FOO: child, BAR: PARENT})
    result = apply([root / FOO], select=["CKPT001", "CKPT002"], jobs=1)
    assert texts(root) == {FOO: child, BAR: PARENT}
    assert any("not among the checked files" in finding.message for finding in result.left)


MODULAR = "models/foo/modular_foo.py"
HEADER = "# This file was automatically generated from src/transformers/models/foo/modular_foo.py.\n"


def test_a_modular_file_and_what_is_made_from_it_get_the_same_edit(tmp_path: Path) -> None:
    root = tree(tmp_path, {FOO: HEADER + INLINE, MODULAR: INLINE})
    repair(root)
    assert texts(root) == {FOO: HEADER + FIXED, MODULAR: FIXED}
    parent = INLINE.replace("Foo", "Bar")
    modular = "from ..bar.modeling_bar import BarModel\n\n\nclass FooModel(BarModel):\n    pass\n"
    root = tree(tmp_path / "1", {FOO: HEADER + INLINE, MODULAR: modular, BAR: parent})
    repair(root)
    assert texts(root) == {FOO: HEADER + FIXED, MODULAR: modular, BAR: FIXED.replace("Foo", "Bar")}


def test_a_part_that_is_too_deep_for_libcst_is_left_alone(tmp_path: Path) -> None:
    loop = "        for layer in self.layers:\n"
    words = " + ".join(["'a'"] * 700)
    text = BY_KEYWORD.replace(loop, f"        words = {words}\n{loop}")
    result = apply([tree(tmp_path, text)], jobs=1)
    assert texts(tmp_path)[FOO] == text
    assert [note.text.partition(":")[0] for note in result.notes] == ["left alone"]
