"""An action runs once a module is imported, however often others look for the module before."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from ckpt_surgery.guarding.after_import import after_import


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a module that can be imported and has not been."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    (tmp_path / "imported_late.py").write_text("value = 3\n", encoding="utf-8")
    monkeypatch.delitem(sys.modules, "imported_late", raising=False)
    return "imported_late"


def test_it_happens_right_after_the_import_and_leaves_nothing_behind(name: str) -> None:
    calls: list[int] = []
    finders = list(sys.meta_path)
    after_import(name, lambda: calls.append(sys.modules[name].value))
    assert calls == []
    module = __import__(name)
    assert calls == [3]
    assert sys.meta_path == finders
    assert module.__spec__ is not None
    assert type(module.__spec__.loader).__module__ == "_frozen_importlib_external"


def test_looking_for_the_module_without_importing_it_changes_nothing(name: str) -> None:
    calls: list[int] = []
    after_import(name, lambda: calls.append(1))
    assert find_spec(name) is not None
    assert find_spec(name) is not None
    assert calls == []
    __import__(name)
    assert calls == [1]
