"""The commands suggested to a person go as far as the series is ready, and no further."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ckpt_surgery.upstream.evidence.body import MARK, next_commands, pull_request_body
from ckpt_surgery.upstream.evidence.results import Evidence
from tests.upstream.evidence import evidence_cases as cases

FOLDER = Path("/out/it's here")
WORKTREE = "/with a space/transformers-all"


def lines(evidence: Evidence) -> list[str]:
    return next_commands(evidence, FOLDER, Path("/with a space/checkout"))


def commands(evidence: Evidence) -> list[list[str]]:
    """Split the next commands as a shell would, without what is to be read first."""
    return [shlex.split(line) for line in lines(evidence)[1:]]


@pytest.mark.parametrize("name", cases.every_kind())
def test_upstreams_own_rules_come_first_and_break_no_shell(name: str) -> None:
    first, *_ = shown = lines(cases.every_kind()[name])
    assert first.startswith("# Read CONTRIBUTING.md of transformers first")
    script = "\n".join(shown)
    assert subprocess.run(["bash", "-n", "-c", script], capture_output=True, check=False).stderr == b""


@pytest.mark.parametrize("name", ["not_ready", "unchecked", "bare"])
def test_a_series_that_is_not_ready_is_only_to_be_looked_at_and_finished(name: str) -> None:
    made = cases.every_kind()[name]
    left = {
        "not_ready": ["PYTHONPATH=src", "python", "utils/checkers.py", "copies"],
        "unchecked": ["PYTHONPATH=src", "python", "-m", "pytest", "tests/models/clvp"],
        "bare": ["PYTHONPATH=src", "python", "-m", "pytest", "tests/models/clvp"],
    }
    for evidence in (made, replace(made, coordination="")):
        steps = commands(evidence)
        assert [command[3] for command in steps if command[:2] == ["git", "-C"]] == ["log", "diff", "worktree"]
        assert steps[3:] == [["cd", WORKTREE], left[name]]


def test_without_an_issue_the_next_step_is_one_and_nothing_is_pushed() -> None:
    steps = commands(cases.uncoordinated())
    assert steps[-1] == ["gh", "issue", "create", "--repo", "huggingface/transformers", "--web"]
    assert steps[0][:3] == ["gh", "issue", "list"]
    assert not any({"push", "create", "fork"} & set(command) for command in steps[:-1])


@pytest.mark.parametrize("written", [True, False])
def test_the_draft_is_refused_while_a_place_is_empty(tmp_path: Path, written: bool) -> None:
    page = pull_request_body(cases.ready(), "")
    (tmp_path / "body.md").write_text(page.replace(MARK, "") if written else page)
    (tmp_path / "gh").write_text("#!/bin/sh\necho opened\n")
    (tmp_path / "gh").chmod(0o755)
    last = next_commands(cases.ready(), tmp_path, tmp_path / "checkout")[-1]
    path = f"{tmp_path}:{os.environ['PATH']}"
    ran = subprocess.run(["bash", "-c", last], env={"PATH": path}, capture_output=True, text=True, check=False)
    assert (ran.returncode == 0) == written == ("opened" in ran.stdout)
    assert ("TO BE WRITTEN BY YOU" in ran.stdout) != written
