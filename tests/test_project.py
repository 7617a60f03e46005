"""The files of GitHub and pre-commit parse, and what they run exists. Each checker also runs on broken files."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from ckpt_surgery.optional import PYTHON, TESTED
from ckpt_surgery.version import __version__
from tests.test_make import MAKEFILE, SESSIONS, build_faults, constant
from tests.test_packaging import ROOT, tracked_files

FILES = [name for name in tracked_files(ROOT) if name.endswith((".yml", ".yaml"))]
WORKFLOWS = [name for name in FILES if name.startswith(".github/workflows/")]
FORMS = [name for name in FILES if name.startswith(".github/ISSUE_TEMPLATE/") and not name.endswith("config.yml")]
TARGETS = re.findall(r"^(\w+):.*## ", MAKEFILE, re.MULTILINE)
MAJOR = re.compile(r"[\w.-]+/[\w./-]+@(v\d+|release/v\d+)")


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def unknown_commands(script: str) -> Iterator[str]:
    """Find unknown targets of make and sessions of nox in a shell script."""
    for target in re.findall(r"\bmake ([^\s;|&-]+)", script):
        if target not in TARGETS:
            yield f"no target {target}"
    for session in re.findall(r"\bnox (?:-s|--session) (\S+)", script):
        if session not in SESSIONS:
            yield f"no session {session}"


def workflow_faults(workflow: Mapping[Any, Any]) -> list[str]:
    """Find what a workflow runs that is missing or unpinned, and what it leaves open: rights, time, concurrency."""
    faults = [] if workflow.get("permissions") == {"contents": "read"} else ["it may do more than read"]
    faults += [] if "concurrency" in workflow else ["nothing says what two runs at once do"]
    for name, job in workflow["jobs"].items():
        faults += [] if "timeout-minutes" in job else [f"{name} has no time limit"]
        for step in job["steps"]:
            script = step.get("run", "")
            faults += unknown_commands(script)
            faults += [fault for line in script.splitlines() for fault in build_faults(line)]
            faults += [f"in the code: {found}" for found in re.findall(r"\$\{\{.*?\}\}", script)]
            if "uses" in step and not MAJOR.fullmatch(step["uses"]):
                faults.append(f"no major version: {step['uses']}")
    return faults


@pytest.mark.parametrize("name", FILES)
def test_each_file_parses(name: str) -> None:
    assert yaml.compose((ROOT / name).read_text(encoding="utf-8")) is not None  # tags of mkdocs.yml stay text


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_runs_what_there_is(name: str) -> None:
    assert workflow_faults(read(name)) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"permissions": "write-all"}, "it may do more than read"),
        ({"concurrency": None}, "nothing says what two runs at once do"),
        ({"jobs": {"a": {"steps": []}}}, "a has no time limit"),
        ({"steps": [{"run": "make tset"}]}, "no target tset"),
        ({"steps": [{"run": "echo ${{ github.ref }}"}]}, "in the code: ${{ github.ref }}"),
        ({"steps": [{"uses": "actions/checkout@main"}]}, "no major version: actions/checkout@main"),
    ],
)
def test_a_broken_workflow_is_seen(change: dict[str, Any], fault: str) -> None:
    steps = change.pop("steps", [])
    workflow = {
        "permissions": {"contents": "read"},
        "concurrency": "a",
        "jobs": {"a": {"timeout-minutes": 5, "steps": steps}},
    }
    changed = {name: value for name, value in {**workflow, **change}.items() if value is not None}
    assert workflow_faults(workflow if steps else changed) == [fault]


def test_there_are_workflows_for_tests_floors_pages_and_releases() -> None:
    assert {Path(name).stem for name in WORKFLOWS} == {"tests", "floors", "pages", "release"}
    (job,) = read(".github/workflows/tests.yml")["jobs"].values()
    assert tuple(job["strategy"]["matrix"]["python"]) == PYTHON
    assert [step["run"] for step in job["steps"] if "run" in step] == ["make test"]


def test_the_floors_of_nox_are_the_oldest_that_are_supported() -> None:
    torch, transformers = ast.literal_eval(constant("FLOORS"))
    assert (torch.removesuffix(".0"), transformers) == tuple(oldest for oldest, _ in TESTED.values())


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash")
@pytest.mark.parametrize(("tag", "code"), [(f"v{__version__}", 0), (__version__, 1), ("v99.0", 1)])
def test_a_release_needs_the_tag_of_its_version(tag: str, code: int) -> None:
    steps = read(".github/workflows/release.yml")["jobs"]["build"]["steps"]
    (step,) = (step for step in steps if step.get("env") == {"TAG": "${{ github.ref_name }}"})
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", step["run"]],
        cwd=ROOT,
        env={**os.environ, "TAG": tag},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "::error::" in done.stdout) == (code, bool(code)), done.stderr


def test_only_the_job_that_publishes_may_ask_for_a_token() -> None:
    jobs = read(".github/workflows/release.yml")["jobs"]
    assert {name: job.get("permissions") for name, job in jobs.items()} == {
        "build": None,
        "publish": {"id-token": "write"},
    }


@pytest.mark.parametrize("name", FORMS)
def test_a_form_asks_for_the_versions(name: str) -> None:
    fields = {part["id"]: part["attributes"] for part in read(name)["body"]}
    assert "`ckpt_surgery --version --all`" in fields["versions"]["description"]
    assert all(field["label"] for field in fields.values())


def test_the_hooks_of_this_repository_run_sessions_that_there_are() -> None:
    repositories = read(".pre-commit-config.yaml")["repos"]
    (local,) = (repository["hooks"] for repository in repositories if repository["repo"] == "local")
    assert [fault for hook in local for fault in unknown_commands(hook["entry"])] == []
    assert {hook["id"] for hook in local} == {"lint", "types"}
    assert all(re.fullmatch(r"v[\d.]+", repository["rev"]) for repository in repositories if "rev" in repository)
