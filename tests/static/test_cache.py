"""The cache on disk: its entries belong to one version of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_surgery import codemods
from ckpt_surgery.static import cache


def test_the_version_of_the_code_changes_with_the_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules/rule.py").write_text("x = 1\n")
    monkeypatch.setattr(codemods, "__path__", [str(tmp_path)])
    cache.code_version.cache_clear()
    try:
        first = cache.code_version()
        (tmp_path / "rules/rule.py").write_text("x = 2\n")
        cache.code_version.cache_clear()
        assert cache.code_version() != first
    finally:
        cache.code_version.cache_clear()
