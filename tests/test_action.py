"""The GitHub Action's commands, run as a runner does, in an environment with the declared dependencies."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sysconfig
import tomllib
import venv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from ckpt_surgery.cli.check import check_command
from ckpt_surgery.cli.verify import verify_command
from tests.test_packaging import ROOT, tracked_files
from tests.zoo.own_code_shapes import write_shape

ACTION: Mapping[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS: list[dict[str, Any]] = [step for step in ACTION["runs"]["steps"] if "run" in step]
INSTALL, CHECK = STEPS
INPUT = re.compile(r"\$\{\{ inputs\.([\w-]+) \}\}")
BASH = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c")
MARKER = "raise RuntimeError('code of the checked folder was run')\n"

pytestmark = pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash")


def expression_faults(action: Mapping[str, Any]) -> list[str]:
    """Find expressions that reach the shell as code, unknown inputs, and variables that no step sets."""
    faults = []
    for step in action["runs"]["steps"]:
        faults += [f"in the code: {found}" for found in re.findall(r"\$\{\{.*?\}\}", step.get("run", ""))]
        for value in {**step.get("env", {}), **step.get("with", {})}.values():
            name = INPUT.fullmatch(str(value))
            if "${{" in str(value) and not (name and name[1] in action["inputs"]):
                faults.append(f"no input: {value}")
    return faults


@dataclass(frozen=True)
class Runner:
    """A runner: a checkout of the action, an interpreter first on the path, and a temporary folder."""

    checkout: Path
    environment: Path
    temporary: Path

    def run(self, folder: Path, *steps: Mapping[str, Any], **inputs: str) -> subprocess.CompletedProcess[str]:
        """Run steps in a folder until one fails, with the inputs that a workflow gives."""
        given = {name.replace("_", "-"): value for name, value in inputs.items()}
        values = {name: given.pop(name, entry["default"]) for name, entry in ACTION["inputs"].items()}
        assert not given
        done = subprocess.CompletedProcess[str]((), 0, "", "")
        for step in steps:
            variables = {
                name: INPUT.sub(lambda match: values[match[1]], value) for name, value in step.get("env", {}).items()
            }
            done = subprocess.run(
                [*BASH, step["run"]],
                cwd=folder,
                env=self._variables() | variables,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                break
        return done

    def _variables(self) -> dict[str, str]:
        return {
            "PATH": os.pathsep.join([str(self.environment / "bin"), "/usr/bin", "/bin"]),
            "HOME": str(self.temporary),
            "XDG_CACHE_HOME": str(self.temporary / "cache"),
            "GITHUB_ACTION_PATH": str(self.checkout),
            "RUNNER_TEMP": str(self.temporary),
            "OMP_NUM_THREADS": "1",
            # what is declared is installed already, and nothing else can be fetched
            "PIP_NO_INDEX": "1",
            "PIP_NO_BUILD_ISOLATION": "0",
        }


def needed(requirements: Iterable[str]) -> set[str]:
    """Return the installed distributions that these requirements lead to."""
    names: set[str] = set()
    waiting = [(Requirement(text), "") for text in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.name in names or not (
            requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        ):
            continue
        names.add(requirement.name)
        texts = importlib.metadata.distribution(requirement.name).requires or ()
        waiting += [(Requirement(text), inner) for text in texts for inner in {"", *requirement.extras}]
    return names


def link_distributions(names: Iterable[str], site: Path) -> None:
    """Make installed distributions part of another environment."""
    for name in names:
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(distribution.locate_file(top))).resolve())


def runner(place: Path, *extras: str) -> Runner:
    """Make a runner whose environment has pip and what the project declares with these extras."""
    checkout, environment, temporary = (place / name for name in ("checkout", "environment", "temporary"))
    for name in tracked_files(ROOT):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, checkout / name, follow_symlinks=False)
    temporary.mkdir()
    venv.create(environment, with_pip=False, symlinks=True)
    paths = {"base": str(environment), "platbase": str(environment)}
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = document["project"]
    declared = ["pip", *document["build-system"]["requires"], *project["dependencies"]]
    declared += [requirement for extra in extras for requirement in project["optional-dependencies"][extra]]
    link_distributions(needed(declared), Path(sysconfig.get_path("purelib", "venv", vars=paths)))
    return Runner(checkout, environment, temporary)


@pytest.fixture(scope="module")
def static(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """Make a runner after the first step, without torch."""
    made = runner(tmp_path_factory.mktemp("static"))
    done = made.run(made.temporary, INSTALL)
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    """Write a repository with a faulty model and files that would replace what the action runs."""
    write_shape(tmp_path / "my model", "module dict")
    for name in ("pip.py", "ckpt_surgery.py", "torch.py", "typer.py"):
        (tmp_path / name).write_text(MARKER)
    return tmp_path


def test_inputs_reach_the_shell_as_variables_alone() -> None:
    assert expression_faults(ACTION) == []
    assert {name for step in STEPS for name in step["env"]} >= {"PATHS", "VERIFY"}
    assert all(step["shell"] == "bash" for step in STEPS)


@pytest.mark.parametrize(
    ("step", "fault"),
    [
        ({"run": "check ${{ inputs.paths }}"}, "in the code: ${{ inputs.paths }}"),
        ({"env": {"PATHS": "${{ inputs.path }}"}}, "no input: ${{ inputs.path }}"),
        ({"env": {"PATHS": "${{ github.event.issue.title }}"}}, "no input: ${{ github.event.issue.title }}"),
    ],
)
def test_an_expression_in_the_shell_is_seen(step: dict[str, Any], fault: str) -> None:
    assert expression_faults({"inputs": ACTION["inputs"], "runs": {"steps": [step]}}) == [fault]


def test_the_inputs_are_those_of_the_commands() -> None:
    options = {*check_command.__annotations__, *verify_command.__annotations__}
    named = {name.replace("-", "_") for name in ACTION["inputs"]}
    assert named - options == {"verify", "requirements", "python_version"}


def test_findings_are_annotations_and_the_step_fails(static: Runner, faulty: Path) -> None:
    done = static.run(faulty, CHECK)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines
    assert all(line.startswith("::error file=my model/modeling_toy.py,line=") for line in lines)
    assert {re.findall(r"title=(CKPT\d+)::", line)[0] for line in lines} == {"CKPT001", "CKPT003"}
    assert "Checked " in done.stderr


def test_files_named_like_those_the_action_runs_are_not_run(static: Runner, faulty: Path) -> None:
    done = static.run(faulty, INSTALL, CHECK, select="CKPT003")
    assert (done.returncode, done.stdout.count("::error ")) == (1, 1), done.stderr


def test_a_clean_repository_passes(static: Runner, tmp_path: Path) -> None:
    write_shape(tmp_path, "healthy")
    done = static.run(tmp_path, CHECK)
    assert (done.returncode, done.stdout) == (0, "")


def test_ignored_rules_fail_nothing(static: Runner, faulty: Path) -> None:
    assert static.run(faulty, CHECK, ignore="CKPT001,CKPT003").returncode == 0


@pytest.mark.parametrize(
    "path",
    [
        '"; touch x #',
        "$(touch x)",
        "--exit-zero",
        "my model\n$(touch x)",
    ],
)
def test_a_path_stays_a_path(static: Runner, faulty: Path, path: str) -> None:
    before = sorted(faulty.iterdir())
    done = static.run(faulty, CHECK, paths=path, select=path)
    assert done.returncode == 2
    done = static.run(faulty, CHECK, paths=path)
    assert done.returncode == 2
    assert f"error: {path.splitlines()[-1]}: no such file or folder: check the path" in done.stderr
    assert sorted(faulty.iterdir()) == before


def test_several_paths_stand_on_lines_and_no_path_at_all_is_an_error(static: Runner, faulty: Path) -> None:
    write_shape(faulty / "healthy", "healthy")
    done = static.run(faulty, CHECK, paths="my model\n\nhealthy\n")
    assert (done.returncode, "Checked 2 files" in done.stderr) == (1, True)
    done = static.run(faulty, CHECK, paths=" \n")
    assert (done.returncode, "a path is empty" in done.stderr) == (2, True)


@pytest.mark.torch
@pytest.mark.slow
def test_models_are_measured_where_that_is_asked_for(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    live = runner(tmp_path_factory.mktemp("live"), "torch")
    write_shape(tmp_path / "good", "healthy")
    write_shape(tmp_path / "bad", "closures")
    done = live.run(tmp_path, *STEPS, paths="good", verify="good\n", trust_remote_code="true")
    assert done.returncode == 0, done.stderr
    assert "ToyModel (toy_of_mine): ok" in done.stdout
    done = live.run(tmp_path, CHECK, paths="good", verify="bad", trust_remote_code="true")
    assert (done.returncode, "ToyModel (toy_of_mine): FAILED" in done.stdout) == (1, True)
    done = live.run(tmp_path, CHECK, paths="good", verify="bad\n$(touch x)")
    assert (done.returncode, "bad comes with its own code" in done.stderr) == (2, True)
    assert not (tmp_path / "x").exists()
