"""`make gpu` lists the wheels that a Python lacks, in lines to paste."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import environment
from benchmarks.gpu.environment import NEEDED, problem_of
from ckpt_surgery.optional import TESTED

ROOT = Path(__file__).parents[3]


def test_it_needs_nothing_but_python() -> None:
    source = Path(environment.__file__).read_text(encoding="utf-8")
    imported = {line.split()[1].split(".")[0] for line in source.splitlines() if line.startswith(("import ", "from "))}
    assert imported <= {*sys.stdlib_module_names, "__future__"}


@pytest.mark.parametrize(
    ("name", "version", "problem"),
    [
        ("torch", "", "torch is not installed"),
        ("torch", "2.7.1+cu128", "torch 2.7.1+cu128 is older than 2.8"),
        ("torch", "2.8.0", ""),
        ("torch", "2.11.0+cu130", ""),
        ("torch", "2.13.0a0+git1234", ""),
        ("torch", "3.0", ""),
        ("transformers", "4.52.3", "transformers 4.52.3 is older than 4.52.4"),
        ("transformers", "4.52.4", ""),
        ("transformers", "5.17.0", ""),
    ],
)
def test_what_is_missing_or_too_old_is_reported(name: str, version: str, problem: str) -> None:
    assert problem_of(name, version) == problem


def test_the_wheels_to_bring_are_those_that_the_tests_run_with() -> None:
    files = (ROOT / "constraints" / name for name in ("base.txt", "transformers-5.txt"))
    pinned = {line for file in files for line in file.read_text(encoding="utf-8").splitlines()}
    pinned |= set(re.findall(r'^TORCH = "(.+)"$', (ROOT / "noxfile.py").read_text(encoding="utf-8"), re.MULTILINE))
    assert {f"{name}=={version}" for name, (_, version) in NEEDED.items()} <= pinned
    assert not any(problem_of(name, version) for name, (_, version) in NEEDED.items())


def test_the_oldest_versions_are_those_of_the_package() -> None:
    assert {name: NEEDED[name][0] for name in TESTED} == {name: oldest for name, (oldest, _) in TESTED.items()}


def test_an_interpreter_that_has_everything_is_taken_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "installed", lambda name: NEEDED[name][0])
    assert environment.main() == 0
    assert capsys.readouterr().err == ""


def test_a_line_to_paste_names_only_what_this_machine_lacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "installed", lambda name: "4.0" if name == "transformers" else "99")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert environment.main() == 2
    said = capsys.readouterr().err
    assert said.startswith("gpu: transformers 4.0 is older than 4.52.4: ")
    download, install = (line for line in said.splitlines() if line.startswith("  "))
    assert download.startswith("  python3 -m pip download --dest wheels ")
    assert "--platform=manylinux_2_28_aarch64" in download
    assert f"--python-version={sys.version_info.major}.{sys.version_info.minor} " in download
    for line in (download, install):
        assert line.endswith(f" transformers=={NEEDED['transformers'][1]}")
        assert "torch" not in line


def test_make_ends_where_something_is_missing(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n', encoding="utf-8")  # without its packages
    python.chmod(0o755)
    command = ["make", "--no-print-directory", "gpu", "DRY=1", f"PYTHON={python}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip download" in done.stderr
    assert "torch==" in done.stderr
