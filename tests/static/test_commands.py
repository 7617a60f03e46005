"""The same repairs as libcst codemods."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import libcst as cst
import pytest
from libcst.codemod import CodemodContext, SkipFile

from ckpt_surgery.codemods import RULES
from ckpt_surgery.codemods.finding import RepairKind
from ckpt_surgery.static import commands
from tests.codemods.snippets import BY_KEYWORD, BY_POSITION, INLINE, LAYERED, PLAIN
from tests.codemods.tools import FOO, repair, texts, tree

ROOT = Path(commands.__file__).parents[2]


@pytest.fixture(autouse=True)
def decided_anew() -> Iterator[None]:
    """Make each test decide anew: a worker decides once for a folder."""
    commands._decided.cache_clear()
    yield
    commands._decided.cache_clear()


def run(command: type[commands.RepairAll], path: Path) -> str:
    module = cst.parse_module(path.read_bytes())
    return command(CodemodContext(filename=str(path))).transform_module(module).code


@pytest.mark.parametrize("text", [PLAIN, INLINE, BY_KEYWORD, BY_POSITION, LAYERED])
def test_a_command_does_what_apply_does(tmp_path: Path, text: str) -> None:
    root = tree(tmp_path, text)
    made = run(commands.RepairAll, root / FOO)
    assert texts(root) == {FOO: text}
    repair(root)
    assert made == texts(root)[FOO]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("PlainBlock", PLAIN),
        ("InlineCheckpoint", INLINE),
        ("KeywordGradient", BY_KEYWORD),
        ("PositionalPastState", BY_POSITION),
    ],
)
def test_a_rule_has_its_own_command(tmp_path: Path, name: str, text: str) -> None:
    root = tree(tmp_path, text)
    assert run(commands.COMMANDS[name], root / FOO) != text
    for other in commands.COMMANDS.keys() - {name, "KeywordGradient" if text == INLINE else name}:
        assert run(commands.COMMANDS[other], root / FOO) == text


def test_the_commands_are_those_of_the_rules_with_safe_repairs() -> None:
    safe = {rule.code for rule in RULES if rule.repair is RepairKind.SAFE}
    assert {command.codes for command in commands.COMMANDS.values()} == {(code,) for code in safe}
    for name, command in commands.COMMANDS.items():
        assert vars(commands)[name] is command  # where libcst looks for it
        assert pickle.loads(pickle.dumps(command)) is command  # for its worker processes


def test_a_module_without_a_file_name_is_skipped() -> None:
    with pytest.raises(SkipFile, match="no file name"):
        commands.RepairAll(CodemodContext()).transform_module(cst.parse_module("x = 1\n"))


def test_libcst_runs_it_from_its_command_line(tmp_path: Path) -> None:
    root = tree(tmp_path, {FOO: INLINE, "models/b/modeling_b.py": BY_KEYWORD})
    command = [sys.executable, "-m", "libcst.tool", "codemod", "-x", "--no-format", "--jobs=1"]
    done = subprocess.run(
        [*command, "ckpt_surgery.static.commands.RepairAll", "models"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    made = texts(root)
    tree(root, {FOO: INLINE, "models/b/modeling_b.py": BY_KEYWORD})
    repair(root)
    assert made == texts(root)
