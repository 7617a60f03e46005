"""`make gpu` lists the wheels that a Python lacks, in lines to paste."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.environment import NEEDED, problem_of
from ckpt_surgery.optional import TESTED

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("name", "version", "problem"),
    [
        ("torch", "", "torch is not installed"),
        ("torch", "2.7.1+cu128", "torch 2.7.1+cu128 is older than 2.8"),
        ("torch", "2.11.0+cu130", ""),
        ("torch", "2.13.0a0+git1234", ""),
        ("transformers", "4.52.3", "transformers 4.52.3 is older than 4.52.4"),
        ("transformers", "4.52.4", ""),
    ],
)
def test_what_is_missing_or_too_old_is_reported(name: str, version: str, problem: str) -> None:
    assert problem_of(name, version) == problem


def test_the_wheels_to_bring_are_those_that_the_tests_run_with_and_the_oldest_those_of_the_package() -> None:
    files = (ROOT / "constraints" / name for name in ("base.txt", "transformers-5.txt"))
    pinned = {line for file in files for line in file.read_text(encoding="utf-8").splitlines()}
    pinned |= set(re.findall(r'^TORCH = "(.+)"$', (ROOT / "noxfile.py").read_text(encoding="utf-8"), re.MULTILINE))
    assert {f"{name}=={version}" for name, (_, version) in NEEDED.items()} <= pinned
    assert {name: NEEDED[name][0] for name in TESTED} == {name: oldest for name, (oldest, _) in TESTED.items()}


def test_make_ends_where_something_is_missing(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n', encoding="utf-8")  # without its packages
    python.chmod(0o755)
    command = ["make", "--no-print-directory", "gpu", "DRY=1", f"PYTHON={python}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip download" in done.stderr
    assert "torch==" in done.stderr
