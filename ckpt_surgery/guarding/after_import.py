"""Run code right after a module is first imported, without importing it any earlier."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def after_import(name: str, action: Callable[[], None]) -> None:
    """Call `action` once the module `name` has been imported, or at once if it already is."""
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Finder(name, action))


class _Finder(MetaPathFinder):
    """A finder that stays until the module is imported: code may also look for a module without importing it."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(self, fullname: str, *_: Any) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        try:
            spec = find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            self._act_after(spec.loader)
        return spec

    def _act_after(self, loader: Any) -> None:
        """Run the action after `loader`, which belongs to this module alone, has run the module."""
        run = loader.exec_module

        def run_and_act(module: ModuleType) -> None:
            del loader.exec_module  # the loader is as it was again
            run(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._action()

        loader.exec_module = run_and_act
