"""A separate cache for every test of the rules, and no transformers unless a case writes one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_surgery.static import discover

pytest.register_assert_rewrite("tests.codemods.tools")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a fresh cache folder, outside the tree that the test checks."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("CKPT_SURGERY_CACHE", str(folder))
    return folder


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide transformers, so that no layer class is read from it."""
    monkeypatch.setattr(discover, "find_spec", lambda name: None)
