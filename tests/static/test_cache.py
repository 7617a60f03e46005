"""The cache on disk: its entries belong to one version of the code."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from ckpt_surgery import codemods, model_patches
from ckpt_surgery.static import cache


def version() -> str:
    cache.code_version.cache_clear()
    try:
        return cache.code_version()
    finally:
        cache.code_version.cache_clear()


@pytest.mark.parametrize("package", [codemods, model_patches], ids=["rules", "facts of families"])
def test_the_version_of_the_code_changes_with_what_findings_depend_on(
    package: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below/module.py").write_text("x = 1\n")
    monkeypatch.setattr(package, "__path__", [str(tmp_path)])
    first = version()
    assert version() == first
    (tmp_path / "below/module.py").write_text("x = 2\n")
    assert version() != first


def test_another_python_reads_no_entry_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    first = version()
    monkeypatch.setattr(sys, "version", "3.99.0 (main)")
    assert version() != first
