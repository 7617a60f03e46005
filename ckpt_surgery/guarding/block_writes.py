"""Find what a block's forward writes to its own modules, and whether the backward writes it again."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any

from torch import Tensor, nn

from ckpt_surgery.runtime.checkpoint.state import UNWATCHED, Attribute
from ckpt_surgery.runtime.tools.classes import BATCH_COUNT, norms_with_momentum
from ckpt_surgery.runtime.tools.containers import Absent
from ckpt_surgery.runtime.tools.tensors import copy_of, is_plain, same_bits

CONTAINERS = (list, dict, set, deque)


class BlockWrites:
    """Watches the attributes and buffers of `block` that its forward writes.

    It is made before the first call. Call `note` after each call, `begin_backward` after all of them, and
    `begin_recompute` as the only recompute begins: hooks of gradients may have written something in between. A
    container counts as written if its length or a number in it changes. The count of batches of a norm that has a
    momentum is left out: nothing is computed from it.
    """

    def __init__(self, block: nn.Module) -> None:
        self._paths = {id(home): name for name, m in block.named_modules() for home in (vars(m), m._buffers)}
        self._batch_counts = {(id(norm._buffers), BATCH_COUNT) for _, norm in norms_with_momentum(block)}
        self._containers = {
            (path, name): (value, _value_of(value))
            for path, module in block.named_modules()
            for name, value in vars(module).items()
            if name not in UNWATCHED and isinstance(value, CONTAINERS)
        }
        self._written: dict[tuple[str, str], Attribute] = {}
        self._before: dict[tuple[str, str], Any] = {}
        self._recompute_begun = False

    def note(self, written: list[Attribute]) -> None:
        """Note the attributes and buffers that a call has written."""
        self._written |= {
            (self._paths[id(home)], name): (home, name)
            for home, name in written
            if id(home) in self._paths and (id(home), name) not in self._batch_counts
        }

    def begin_backward(self) -> None:
        """Record the values of what was written, before anything is recomputed."""
        self._record_values()
        self._containers = {
            key: (value, now)
            for key, (value, before) in self._containers.items()
            if (now := _value_of(value)) != before
        }

    def begin_recompute(self) -> None:
        """Record the values again, the first time this is called."""
        if not self._recompute_begun:
            self._recompute_begun = True
            self._record_values()

    def _record_values(self) -> None:
        self._before = {key: _value_of(home.get(name, Absent)) for key, (home, name) in self._written.items()}

    def written_again(self) -> tuple[list[str], list[str]]:
        """Return the paths of attributes and buffers, and of containers, that the backward has changed."""
        attributes = []
        for key, (home, name) in self._written.items():
            before, now = self._before.get(key, Absent), _value_of(home.get(name, Absent))
            if isinstance(before, Tensor) and isinstance(now, Tensor):
                attributes += [] if same_bits(before, now) else [key]
            elif key in self._before and (type(before) is not type(now) or before != now):
                attributes.append(key)
        containers = [key for key, (value, before) in self._containers.items() if _value_of(value) != before]
        return [".".join(filter(None, key)) for key in attributes], [".".join(filter(None, key)) for key in containers]


def _value_of(value: Any) -> Any:
    """Return a record to compare with a later one: a copy of a tensor, or the numbers in a container."""
    if isinstance(value, Tensor):
        return copy_of(value.detach()) if is_plain(value) else None
    if isinstance(value, CONTAINERS):
        items = value.values() if isinstance(value, dict) else value
        return len(value), tuple(item for item in items if type(item) in (int, float))
    return value if isinstance(value, Hashable) and type(value) in (int, float, bool, str) else None
