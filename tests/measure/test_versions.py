"""The packages that a verdict depends on, and those in a bug report."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import types

import pytest

from ckpt_surgery.measure import versions
from ckpt_surgery.measure.versions import REPORTED, accelerator, bug_report_versions, installed_versions
from ckpt_surgery.optional import TESTED


def test_versions_are_those_of_what_is_installed() -> None:
    assert installed_versions(("ckpt-surgery", "pytest", "no-such-package")) == {
        "ckpt-surgery": importlib.metadata.version("ckpt-surgery"),
        "pytest": pytest.__version__,
    }


def test_a_bug_report_says_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "installed_version", {"peft": "0.17.0"}.get)
    monkeypatch.setattr(versions, "is_installed", lambda _: False)
    told = bug_report_versions()
    assert told.keys() > {"ckpt_surgery", "Python", "platform", "tested", *TESTED}
    assert (told["peft"], told["libcst"]) == ("0.17.0", "not installed")
    assert told["accelerator"] == "none: torch is not installed"
    assert {*REPORTED} >= {"torch", "transformers", "accelerate", "peft", "deepspeed", "numpy", "libcst"}


def test_a_torch_that_fails_is_reported_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "is_installed", lambda _: True)
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    assert accelerator() == "torch fails: AttributeError: module 'torch' has no attribute 'version'"


def test_a_package_without_metadata_is_installed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "installed_version", lambda _: None)
    monkeypatch.setattr(versions, "is_installed", lambda name: name == "huggingface_hub")
    told = bug_report_versions()
    assert (told["huggingface-hub"], told["peft"]) == ("of an unknown version", "not installed")


@pytest.mark.torch
def test_a_torch_that_works_names_its_device() -> None:
    assert accelerator()
    assert "fails" not in accelerator()


def test_what_every_process_shares_loads_no_torch() -> None:
    code = (
        "import sys\n"
        "from ckpt_surgery import errors, text\n"
        "from ckpt_surgery.measure import versions\n"
        "versions.installed_versions()\n"
        "print(*sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == ""
