"""Two source trees for the tests of this folder: the installed release, and a copy of it after `apply`."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

import ckpt_surgery

ROOT = Path(__file__).resolve().parents[2]


class Runner(Protocol):
    """A function that runs a script of this folder once per tree, all in parallel, and returns the results."""

    def __call__(self, script: str, trees: Mapping[str, Path], *arguments: str) -> dict[str, Any]: ...


@pytest.fixture(scope="session")
def released_tree() -> Path:
    spec = importlib.util.find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent.parent


@pytest.fixture(scope="session")
def repaired_tree(released_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Repair a copy of the package, unsafe repairs included; return the folder that holds it."""
    folder = copied_tree(released_tree, tmp_path_factory.mktemp("repaired"))
    result = ckpt_surgery.apply([folder / "transformers/models"], unsafe=True)
    assert result.written
    assert result.changes
    assert not result.problems
    return folder


def copied_tree(released: Path, folder: Path) -> Path:
    """Copy the released package into such a folder.

    Compiled files are copied too: they match their source by time and size, which an edit changes.
    """
    shutil.copytree(released / "transformers", folder / "transformers")
    return folder


@pytest.fixture(scope="session")
def run_on_trees(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """Return a `Runner` with separate folders."""

    def run(script: str, trees: Mapping[str, Path], *arguments: str) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp(script)
        started = {name: _start(script, tree, folder / name, arguments) for name, tree in trees.items()}
        failed = [name for name, process in started.items() if process.wait() != 0]
        assert not failed, "\n".join((folder / name / "errors").read_text(encoding="utf-8") for name in failed)
        return {name: json.loads((folder / name / "result").read_text(encoding="utf-8")) for name in trees}

    return run


def _start(script: str, tree: Path, folder: Path, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    folder.mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tree), str(ROOT)]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-m", f"tests.measure.{script}", str(tree), str(folder / "result"), *arguments]
    with (folder / "errors").open("wb") as errors:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=errors, stderr=errors)
