"""What test suites use: one assertion, and a mixin for test classes of transformers' own shape.

The plugin for pytest is `ckpt_surgery.testing.pytest_plugin`. It has to load without torch, so the names here are
imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckpt_surgery.testing.assertions import GradientCheckpointingTesterMixin, assert_checkpointing

__all__ = ["GradientCheckpointingTesterMixin", "assert_checkpointing"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ckpt_surgery.testing import assertions

    value: object = getattr(assertions, name)
    return value
