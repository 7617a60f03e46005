"""Files in a newer Python's syntax are read as far as possible, or named in a note."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from ckpt_surgery import apply, check
from ckpt_surgery.static.discover import read_sources
from ckpt_surgery.static.newer import as_older
from ckpt_surgery.static.snapshot import RULE_CODES, take_snapshot
from tests.codemods.snippets import BAR, CHILD, LAYER, PARENT_LAYERED, PLAIN
from tests.codemods.tools import FOO, texts, tree

NEWER = [
    "type Feature = dict[str, int]\n",
    "class Box[T](list[T]):\n    type Item = (\n        T |\n        None\n    )\n",
    "def first[T: (int, str), *Ts, **P = [int]](xs: list[T]) -> T: return xs[0]\n",
    'x = f"{d["a"]}" f"{y}"\n',
    'x = (f"{\n    y["a"]\n}", 1)\n',
    'x = f"é {d["é"]}"; y = 1\n',
]


@pytest.mark.parametrize("text", NEWER)
def test_newer_syntax_becomes_blank_and_all_else_stays_in_its_place(text: str) -> None:
    older = as_older(text)
    assert older is not None
    ast.parse(older, feature_version=(3, 11))
    assert [len(line.encode()) for line in older.split("\n")] == [len(line.encode()) for line in text.split("\n")]
    kept = [node.name for node in ast.walk(ast.parse(older)) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert all(name in text for name in kept)


@pytest.mark.parametrize(
    "text",
    [
        'print "x"\n',
        "%matplotlib inline\n",
        "{% if x %}\n",
        "x = (\n",
        "try:\n    pass\nexcept IOError, error:\n    pass\n",
        "x = " + "(" * 5000 + ")" * 5000,
        "x = " + "-" * 500000 + "1",
    ],
)
def test_what_is_no_python_at_all_is_a_problem(tmp_path: Path, text: str) -> None:
    assert as_older(text) is None
    result = check([tree(tmp_path, text) / FOO], jobs=1)
    assert (len(result.problems), result.notes) == (1, ())


@pytest.mark.parametrize(
    ("text", "python"), [('x = t"{y}"\n', (3, 14)), ("try:\n    pass\nexcept OSError, KeyError:\n    pass\n", (3, 14))]
)
def test_what_cannot_be_made_blank_is_a_note(tmp_path: Path, text: str, python: tuple[int, int]) -> None:
    assert as_older(text) == text
    other = "models/a/modeling_a.py"
    root = tree(tmp_path, {FOO: PLAIN, other: text})
    result = check([root, root / other], jobs=1)
    assert (len(result.findings), result.problems) == (1, ())
    assert [note.path for note in result.notes] == [str(root / other)] * (sys.version_info[:2] < python)
    assert all("needs a newer Python than 3." in note.text for note in result.notes)


def test_a_file_of_a_newer_python_is_checked_and_repaired(tmp_path: Path) -> None:
    head = 'type Feature = dict[str, int]\nname = f"{names["foo"]}"\n\n\ndef first[T](xs: list[T]) -> T: ...\n'
    generic = "class FooLayer[T](nn.Module)"
    text = PLAIN.replace("class FooAttention", f"{head}\n\nclass FooAttention").replace(
        "class FooLayer(nn.Module)", generic
    )
    assert generic in text
    root = tree(tmp_path, text)
    (finding,) = check([root], jobs=1).findings
    assert text.split("\n")[finding.line - 1].startswith(generic)
    apply([root], jobs=1)
    repaired = texts(root)[FOO]
    assert head in repaired
    assert "class FooLayer[T](GradientCheckpointingLayer)" in repaired
    assert LAYER.partition("\n")[2] in repaired
    assert check([root], jobs=1).findings == ()


def test_a_newer_file_beside_those_that_are_checked_is_understood(tmp_path: Path) -> None:
    parent = f"type X = int\n{PARENT_LAYERED}"
    root = tree(tmp_path, {FOO: CHILD, BAR: parent})
    snapshot, problems = take_snapshot(read_sources([root / FOO])[0], jobs=1, cache=False, progress=None)
    findings, bugs = snapshot.findings_and_bugs(RULE_CODES, include_unsupported=False)
    assert (findings, bugs, problems) == ([], {}, [])
    ast.parse(snapshot.text(str(root / BAR)))


def test_imports_of_a_newer_script_are_followed(tmp_path: Path) -> None:
    files = {"train.py": "from models.foo import modeling_foo\ntype X = int\n", FOO: PLAIN}
    tree(tmp_path, files)
    assert [finding.code for finding in check([tmp_path / "train.py"], jobs=1).findings] == ["CKPT001"]
