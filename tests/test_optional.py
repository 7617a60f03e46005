"""Older releases than the tested ones are refused, newer ones are noted once, and static parts take any."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import ckpt_surgery
from ckpt_surgery import optional
from ckpt_surgery.cli.main import main
from ckpt_surgery.errors import MissingPackageError
from ckpt_surgery.optional import PYTHON, TESTED, need_runtime, supported_range

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TOO_OLD = "needs torch 2.8 or later, and 2.7.1+cu118 is installed: run `python -m pip install 'torch>=2.8'`"
Installed = Callable[..., None]
DOORS = ["verify bert", "explain bert", "plan bert --memory 8GB", "run train.py"]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    """Pretend that releases of torch and transformers are installed; None is a package without metadata."""
    versions: dict[str, str | None] = {}

    def pretend(torch: str | None = "2.13.0", transformers: str | None = "5.23.0") -> None:
        versions.update(torch=torch, transformers=transformers)

    monkeypatch.setattr(optional, "is_installed", lambda name: True)
    monkeypatch.setattr(optional, "installed_version", versions.get)
    optional._log_newer.cache_clear()
    yield pretend
    optional._log_newer.cache_clear()


def test_the_oldest_releases_are_those_that_the_project_asks_for() -> None:
    asked = {
        requirement.name: str(requirement.specifier)
        for requirement in map(Requirement, PROJECT["optional-dependencies"]["torch"])
    }
    assert asked == {name: f">={oldest}" for name, (oldest, _) in TESTED.items()}
    assert PROJECT["requires-python"] == f">={PYTHON[0]}"
    named = [text.rpartition(" :: ")[2] for text in PROJECT["classifiers"] if "Python :: 3." in text]
    assert (named[0], named[-1]) == PYTHON


def test_the_pages_name_the_tested_releases() -> None:
    assert f"Tested with {supported_range()}." in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    asked = " and ".join(f"{name} {oldest}" for name, (oldest, _) in TESTED.items())
    for page in ("README.md", "docs/quickstart.md"):
        assert f"also need {asked} or later" in " ".join((ROOT / page).read_text(encoding="utf-8").split())


@pytest.mark.parametrize(
    "torch", ["2.8", "2.8.0+cpu", "2.8.0a0+34c6371d24.nv25.8", "2.15.9+cu130", "2.13.0a0+git1234", None, "of mine"]
)
def test_what_was_tested_or_is_not_known_is_taken_in_silence(
    installed: Installed, caplog: pytest.LogCaptureFixture, torch: str | None
) -> None:
    installed(torch, "5.24.3")
    need_runtime("verify")
    assert caplog.records == []


@pytest.mark.parametrize(
    ("torch", "transformers"),
    [("2.7.1+cu118", "5.23.0"), ("1.13", "5.23.0"), ("2.13.0", "4.52.3"), ("2.13.0", "4.52.0.dev0")],
)
def test_an_older_release_is_refused(installed: Installed, torch: str, transformers: str) -> None:
    installed(torch, transformers)
    with pytest.raises(
        MissingPackageError, match=r"^verify needs \w+ [\d.]+ or later, and .* is installed: run "
    ) as error:
        need_runtime("verify")
    assert error.value.name == ("torch" if transformers == "5.23.0" else "transformers")


@pytest.mark.parametrize("arguments", DOORS)
def test_a_command_says_it_in_one_line(
    installed: Installed, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    installed("2.7.1+cu118")
    monkeypatch.setitem(sys.modules, "transformers", None)  # nothing may import it before it is asked for
    assert main(arguments.split()) == 2
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", f"ckpt_surgery: error: {arguments.split()[0]} {TOO_OLD}\n")


@pytest.mark.parametrize("name", ["wrap_blocks", "tiny_model"])
def test_a_name_of_the_front_says_it(installed: Installed, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    installed("2.7.1+cu118")
    monkeypatch.delitem(vars(ckpt_surgery), name, raising=False)
    with pytest.raises(MissingPackageError, match=f"^{re.escape(f'{name} {TOO_OLD}')}$"):
        getattr(ckpt_surgery, name)
    assert name not in ckpt_surgery.__all__


def test_static_parts_take_any_release(installed: Installed, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "clean.py").write_text("x = 1\n")
    for torch in ("1.13", "9.0"):
        installed(torch)
        assert main(["check", str(tmp_path)]) == 0
        assert main(["apply", str(tmp_path)]) == 0
        assert {"check", "apply", "Finding"} <= set(ckpt_surgery.__all__)
    assert caplog.records == []


@pytest.mark.parametrize(
    ("torch", "transformers", "said"),
    [
        ("2.16.0a0+git1234", "5.23.0", ["torch 2.16.0a0+git1234 is newer than 2.15"]),
        ("3.0", "5.23.0", ["torch 3.0 is newer than 2.15"]),
        ("2.13.0", "5.25.0.dev0", ["transformers 5.25.0.dev0 is newer than 5.24.0"]),
        ("2.16.1", "6.0.0rc1", ["torch 2.16.1 is newer than 2.15", "transformers 6.0.0rc1 is newer than 5.24.0"]),
    ],
)
def test_a_newer_release_is_reported_once(
    installed: Installed, caplog: pytest.LogCaptureFixture, torch: str, transformers: str, said: list[str]
) -> None:
    installed(torch, transformers)
    for wanted in ("verify", "plan"):
        need_runtime(wanted)
    (record,) = caplog.records
    told = "; ".join(f"{part}, the newest that was tested" for part in said)
    assert (record.levelno, record.getMessage()) == (logging.WARNING, f"ckpt_surgery: {told}")


NEWER = """
import importlib.metadata as metadata
version = metadata.version
metadata.version = lambda name: "99.0" if name == "torch" else version(name)
import ckpt_surgery
from ckpt_surgery import check
print("silent so far", flush=True)
from ckpt_surgery import {names}
"""


@pytest.mark.torch
def test_it_is_one_line_and_no_warning_that_could_be_an_error() -> None:
    command = [sys.executable, "-W", "error::UserWarning", "-c", NEWER.format(names="verify, wrap_blocks")]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    assert done.stdout.splitlines() == [
        "silent so far",
        f"ckpt_surgery: torch 99.0 is newer than {TESTED['torch'][1]}, the newest that was tested",
    ]


def test_a_package_without_metadata_has_the_version_of_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert optional.installed_version("no-such-package") is None
    assert optional.installed_version("pytest") == pytest.__version__
    (tmp_path / "a_clone").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert not optional.is_installed("a_clone")
    (tmp_path / "a_clone" / "__init__.py").write_text("__all__ = []\n")
    assert optional.is_installed("a_clone")
    assert optional.installed_version("a-clone") is None
    (tmp_path / "a_clone" / "version.py").write_text("import os\n__version__: str = '2.5.0a0+git1'\n")
    assert optional.installed_version("a-clone") == "2.5.0a0+git1"


def run(code: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


LACKING = "import torch; del torch._C._current_graph_task_id\n"
LACKED = "does not work here: AttributeError: module 'torch._C' has no attribute '_current_graph_task_id'"
IMPORTS = (
    "from ckpt_surgery import wrap_blocks",
    "import ckpt_surgery.distributed",
    "from ckpt_surgery.testing import assert_checkpointing",
)


@pytest.mark.torch
@pytest.mark.parametrize("statement", IMPORTS)
def test_a_name_that_torch_lacks_is_the_error(statement: str, tmp_path: Path) -> None:
    last = run(LACKING + statement, tmp_path).stdout.splitlines()[-1]
    assert re.match(r"ckpt_surgery\.errors\.MissingPackageError: \S+ needs torch, and torch \S+ does not work", last)
    assert last.endswith(LACKED)


MAIN = "from ckpt_surgery.cli.main import main\nraise SystemExit(main({!r}))"


@pytest.mark.torch
def test_a_script_runs_with_a_torch_that_lacks_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nprint('trained', torch.ones(2).sum().item())\n")
    done = run(f"{LACKING}{MAIN.format(['run', 'train.py'])}", tmp_path)
    assert done.returncode == 0
    said, trained = done.stdout.splitlines()
    assert said.startswith("ckpt_surgery: the script runs unwrapped and unwatched, because run cannot be imported: ")
    assert said.endswith("has no attribute '_current_graph_task_id'")
    assert trained == "trained 2.0"


@pytest.mark.torch
def test_a_broken_torch_is_no_bug_of_ours(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise OSError('libcudart.so.12: cannot open')\n")
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    (line,) = run(MAIN.format(["explain", "llama"]), tmp_path, PYTHONPATH=path).stdout.splitlines()
    assert line.endswith("does not work here: OSError: libcudart.so.12: cannot open")
