"""The command line as a whole: usage, help, version, and imports on starting."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

import ckpt_surgery
from ckpt_surgery.cli.main import app, main
from tests.cli.stand_ins import StandIn, run

ROOT = Path(ckpt_surgery.__file__).parents[1]


@pytest.mark.parametrize(
    "arguments", ["", "chek", "check --jobs 0", "check --jobs two", "check --output-format xml", "apply", "--no"]
)
def test_a_wrong_usage_exits_with_2(check: StandIn, capsys: pytest.CaptureFixture[str], arguments: str) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert "Usage" in captured.out + captured.err
    assert check.calls == []


def python(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, timeout=60, check=False
    )


PROGRAM: Any = typer.main.get_command(app)


@pytest.mark.parametrize("command", ["", *PROGRAM.commands])
def test_the_help_of_a_command_is_one_screen(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(f"{command} --help") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Usage: ckpt_surgery")
    assert (max(map(len, lines)), len(lines)) <= (80, 50)
    assert [line for line in lines if re.search(r"<\w|\bTEXT\b|INTEGER|list\[", line)] == []


def test_the_help_has_options_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run --help") == 0
    groups = re.findall(r"^(\S.*):$", capsys.readouterr().out, re.MULTILINE)
    assert groups[:3] == ["Arguments", "Options", "What is wrapped"]
    assert run("--help") == 0
    assert "Train:\n  fit" in capsys.readouterr().out


def test_a_shell_completes_commands_and_options() -> None:
    asked = {"_CKPT_SURGERY_COMPLETE": "complete_bash", "COMP_WORDS": "ckpt_surgery ver", "COMP_CWORD": "1"}
    ended = python("-m", "ckpt_surgery", **asked)
    assert ended.stdout.split() == ["verify"]


def test_the_version_is_that_of_the_distribution() -> None:
    ended = python("-m", "ckpt_surgery", "--version")
    assert ended.stdout == f"ckpt_surgery {ckpt_surgery.__version__}\n"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project.get("version", ckpt_surgery.__version__) == ckpt_surgery.__version__


def test_all_versions_are_listed_below_one_another() -> None:
    ended = python("-m", "ckpt_surgery", "--version", "--all")
    lines = dict(line.split(maxsplit=1) for line in ended.stdout.splitlines())
    assert (ended.returncode, ended.stderr) == (0, "")
    assert lines["ckpt_surgery"] == ckpt_surgery.__version__
    assert {"Python", "platform", "accelerator", "torch", "transformers", "libcst"} < lines.keys()


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import ckpt_surgery", "ckpt_surgery.codemods typer rich libcst torch transformers importlib.metadata"),
        ("import ckpt_surgery.cli.main", "ckpt_surgery.codemods rich libcst torch transformers"),
        ("import ckpt_surgery.static.discover", "rich libcst torch transformers typer"),
        ("from ckpt_surgery import Finding, Problem", "rich libcst torch transformers typer"),
    ],
)
def test_an_import_loads_no_more_than_it_needs(statement: str, absent: str) -> None:
    ended = python("-c", f"import sys; {statement}; print(*(n for n in {absent.split()} if n in sys.modules))")
    assert (ended.returncode, ended.stdout.strip(), ended.stderr) == (0, "", "")


def test_main_turns_an_interrupt_outside_of_a_command_into_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(**_: object) -> Callable[[], None]:
        raise KeyboardInterrupt

    monkeypatch.setattr("ckpt_surgery.cli.main.app", interrupted)
    assert main([]) == 130
    assert capsys.readouterr().err == "ckpt_surgery: interrupted\n"


@pytest.mark.parametrize("closed", [">&- 2>&-"])
def test_a_closed_output_changes_no_exit_code(tmp_path: Path, closed: str) -> None:
    (tmp_path / "clean.py").write_text("x = 1\n")
    command = f'"{sys.executable}" -m ckpt_surgery check clean.py {closed}'
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "bug" not in done.stdout + done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
@pytest.mark.parametrize("arguments", ["--help", "check --help"])
def test_help_that_cannot_be_written_is_one_line_and_2(arguments: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "ckpt_surgery", *arguments.split()]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, env=environment, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (
        2,
        "ckpt_surgery: error: standard output cannot be written to: No space left on device\n",
    )


def test_all_without_version_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--all"]) == 2
    assert main(["--all", "rule"]) == 2
    assert (
        capsys.readouterr().err.splitlines()
        == ["ckpt_surgery: error: --all needs --version here: run `ckpt_surgery --version --all`"] * 2
    )
