"""A separate cache for every test of the source engine."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a fresh cache folder, outside the tree that the test checks."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("CKPT_SURGERY_CACHE", str(folder))
    return folder
