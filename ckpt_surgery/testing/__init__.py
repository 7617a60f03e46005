"""Helpers for test suites: an assertion, and a mixin for test classes that derive from those of transformers.

The plugin for pytest, `ckpt_surgery.testing.pytest_plugin`, has to load without torch. So the names here are imported
when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ckpt_surgery.optional import load_runtime

if TYPE_CHECKING:
    from ckpt_surgery.testing.assertions import assert_checkpointing
    from ckpt_surgery.testing.tester_mixin import GradientCheckpointingTesterMixin

__all__ = ["GradientCheckpointingTesterMixin", "assert_checkpointing"]

_DEFINED_IN = {"GradientCheckpointingTesterMixin": "tester_mixin", "assert_checkpointing": "assertions"}


def __getattr__(name: str) -> object:
    if name not in _DEFINED_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    load_runtime(name, ("torch",))
    value: object = getattr(import_module(f"{__name__}.{_DEFINED_IN[name]}"), name)
    return value
