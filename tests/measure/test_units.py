"""Bytes in words, and the packages that a verdict depends on: what every message and report shares."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

from ckpt_surgery.measure import versions
from ckpt_surgery.measure.versions import installed_versions
from ckpt_surgery.text import size, size_unit


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (-2048, "-2.0 KiB"),
        (150 * 1024, "150 KiB"),
        (2**31, "2.0 GiB"),
        (2**55, "32768 TiB"),
    ],
)
def test_bytes_have_the_unit_that_fits(count: int, text: str) -> None:
    assert size(count) == text


def test_the_unit_of_the_largest_serves_a_whole_axis() -> None:
    assert size_unit(3 * 2**20) == ("MiB", 2**20)
    assert size_unit(1) == ("B", 1)


def test_versions_are_those_of_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "PACKAGES", ("ckpt-surgery", "pytest", "no-such-package"))
    assert installed_versions() == {
        "ckpt-surgery": importlib.metadata.version("ckpt-surgery"),
        "pytest": pytest.__version__,
    }


def test_what_every_process_shares_loads_no_torch() -> None:
    code = (
        "import sys\n"
        "from ckpt_surgery.measure import errors, units, versions\n"
        "versions.installed_versions()\n"
        "print(*sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == ""
