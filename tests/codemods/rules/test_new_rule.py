"""A contributor's new rule: one file in `codemods/rules/`, and every part of the package knows it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ckpt_surgery
from ckpt_surgery.codemods.rule import discover
from tests.codemods.snippets import PLAIN
from tests.codemods.tools import FOO, tree

ROOT = Path(__file__).parents[3]
PACKAGE = Path(ckpt_surgery.__file__).parent
RULE = '''\
"""A forward takes a bare `*args`.

## What it does
Reports classes whose forward takes arguments without names.

## Why is this bad?
Nothing says which of them carry gradient, and which are past state.

## Example
```python
def forward(self, hidden_states, *args): ...               # before
def forward(self, hidden_states, attention_mask=None): ... # after
```

## Fix safety
Not repaired: only the author knows the names.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_surgery.codemods.context import RuleContext
from ckpt_surgery.codemods.declaration import Declaration, RepairKind
from ckpt_surgery.codemods.finding import Applicability, Finding

RULE = Declaration(code="CKPT014", repair=RepairKind.NONE, applicability=Applicability.UNSAFE)


def find(context: RuleContext) -> Iterator[Finding]:
    """A finding for every class whose forward takes `*args`."""
    for path in context.tree.checked:
        for ref in context.tree.names.classes(path):
            forward = ref.cls.forward
            if forward and any(parameter.kind == "*" for parameter in forward.params):
                yield context.class_finding(RULE, ref, f"{ref.name} takes *args")
'''
CASE = """\
# CKPT014 unsafe | class FooLayer | FooLayer takes *args
# prelude: gcl

class FooLayer:
    def forward(self, hidden_states, *args):
        return self.self_attn(hidden_states)
"""
SIGNATURE = "self, hidden_states, attention_mask=None, past_key_values=None):\n        return self."
MODEL = PLAIN.replace(SIGNATURE, SIGNATURE.replace("attention_mask=None, past_key_values=None", "*args"))
ASKED = """
import json
from ckpt_surgery.codemods import RULES, rule_of
from ckpt_surgery.static.commands import COMMANDS

rule = rule_of("CKPT014")
print(json.dumps([rule.name, rule.summary, rule.commit, [one.code for one in RULES].index("CKPT014"), [*COMMANDS]]))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package to which one file was added."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(PACKAGE, folder / "ckpt_surgery", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "ckpt_surgery" / "codemods" / "rules" / "unnamed_arguments.py").write_text(RULE, encoding="utf-8")
    return folder


def run(copy: Path, *arguments: str, folder: Path) -> str:
    """What Python prints with the copy in place of the package; it ends with 0 or, with findings, with 1."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_the_registry_and_the_libcst_commands_hold_it(copy: Path, tmp_path: Path) -> None:
    name, summary, commit, position, commands = json.loads(run(copy, "-c", ASKED, folder=tmp_path))
    assert (name, summary) == ("unnamed_arguments", "A forward takes a bare `*args`.")
    assert commit is None
    assert position == 13, "rules are sorted by code"
    assert "UnnamedArguments" not in commands, "it repairs nothing"


def test_a_rule_that_repairs_is_a_libcst_command(copy: Path, tmp_path: Path) -> None:
    shutil.copytree(copy, tmp_path / "copy")
    text = RULE.replace("repair=RepairKind.NONE", 'repair=RepairKind.SAFE, commit="{}.forward names its arguments"')
    (tmp_path / "copy/ckpt_surgery/codemods/rules/unnamed_arguments.py").write_text(text, encoding="utf-8")
    *_, commit, _, commands = json.loads(run(tmp_path / "copy", "-c", ASKED, folder=tmp_path))
    assert commit == "{}.forward names its arguments"
    assert "UnnamedArguments" in commands


def test_the_rule_command_lists_and_explains_it(copy: Path, tmp_path: Path) -> None:
    assert "CKPT014 unnamed_arguments\n" in run(copy, "-m", "ckpt_surgery", "rule", folder=tmp_path)
    shown = run(copy, "-m", "ckpt_surgery", "rule", "CKPT014", folder=tmp_path)
    assert shown.startswith("CKPT014 unnamed_arguments\n\nA forward takes")


def test_check_finds_with_it_and_apply_leaves_it_to_a_person(copy: Path, tmp_path: Path) -> None:
    root = tree(tmp_path, MODEL)
    command = ["-m", "ckpt_surgery", "check", "--select", "CKPT014", "--output-format", "json", "models"]
    (finding,) = json.loads(run(copy, *command, folder=root))["findings"]
    line = MODEL[: MODEL.index("class FooLayer")].count("\n") + 1
    assert (finding["code"], finding["line"], finding["message"]) == ("CKPT014", line, "FooLayer takes *args")
    summary = run(copy, "-m", "ckpt_surgery", "apply", "--select", "CKPT014", "models", folder=root)
    assert "CKPT014 unnamed_arguments: 0 repaired, left: 1 to be repaired by hand" in summary
    assert (root / FOO).read_text(encoding="utf-8") == MODEL


def test_its_case_tells_what_it_reports(copy: Path, tmp_path: Path) -> None:
    checked = "import pathlib, sys; from tests.codemods.tools import check_noop; check_noop(pathlib.Path.cwd(), {!r})"
    told, silent = CASE, CASE.replace("# CKPT014 unsafe | class FooLayer | FooLayer takes *args\n", "")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(copy), str(ROOT)])}
    for folder, (case, said) in enumerate(
        {told: "", silent: "not expected:\n# CKPT014 unsafe | class FooLayer"}.items()
    ):
        (tmp_path / str(folder)).mkdir()
        command = [sys.executable, "-c", checked.format(case)]
        done = subprocess.run(
            command, cwd=tmp_path / str(folder), env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == bool(said)
        assert said in done.stderr


def test_a_comment_may_suppress_it(copy: Path, tmp_path: Path) -> None:
    root = tree(
        tmp_path, MODEL.replace("FooLayer(nn.Module):", "FooLayer(nn.Module):  # ckpt: ignore[CKPT014] named below")
    )
    command = ["-m", "ckpt_surgery", "check", "--select", "CKPT014", "--output-format", "json", "models"]
    assert json.loads(run(copy, *command, folder=root))["findings"] == []


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("no_rule", '"""Nothing declared."""\n', "no_rule declares no rule: it needs RULE = Declaration"),
        ("same_code", RULE, "the rules (other|same_code) and (other|same_code) both have the code CKPT014"),
    ],
)
def test_a_file_that_declares_no_rule_or_a_code_twice_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, message: str
) -> None:
    package = f"rules_with_{name}"
    tree(tmp_path, {f"{package}/__init__.py": "", f"{package}/other.py": RULE, f"{package}/{name}.py": text})
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises((TypeError, ValueError), match=message):
        discover(package)
