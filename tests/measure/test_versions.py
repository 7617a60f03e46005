"""The packages that a verdict depends on."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

from ckpt_surgery.measure import versions
from ckpt_surgery.measure.versions import installed_versions


def test_versions_are_those_of_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "PACKAGES", ("ckpt-surgery", "pytest", "no-such-package"))
    assert installed_versions() == {
        "ckpt-surgery": importlib.metadata.version("ckpt-surgery"),
        "pytest": pytest.__version__,
    }


def test_what_every_process_shares_loads_no_torch() -> None:
    code = (
        "import sys\n"
        "from ckpt_surgery import errors, text\n"
        "from ckpt_surgery.measure import versions\n"
        "versions.installed_versions()\n"
        "print(*sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == ""
