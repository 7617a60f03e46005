"""The state in which a module is called that no argument carries: autocast, its hooks, its plain attributes.

A recompute in any other state gives another result, or fails. Nothing is judged here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator

import torch
from torch import nn

from ckpt_surgery.runtime.tools.classes import hooks_of_others

HOOKS = "hooks"
AUTOCAST_STATES = ("autocast", "dtype of autocast")
"""The names of what is no attribute."""
_OWN_MODE = "training"


class CallStates:
    """The states in which calls of one module began, in the forward and in the backward of a step."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Counter[Hashable], Counter[Hashable]]] = {}

    def note(self, module: nn.Module, *, again: bool) -> None:
        """Note the state in which a call of the module begins; `again` marks a recompute."""
        for name, value in _state(module):
            self._seen.setdefault(name, (Counter(), Counter()))[again][value] += 1

    def differing(self) -> Iterator[str]:
        """Name the states in which recomputes do not match forwards."""
        for name, (first, again) in self._seen.items():
            unknown = any(value not in first for value in again)
            if unknown or (first.total() == again.total() and first != again):
                yield name


def _state(module: nn.Module) -> Iterator[tuple[str, Hashable]]:
    device = next((parameter.device.type for parameter in module.parameters()), "cpu")
    enabled = torch.is_autocast_enabled(device)
    yield from zip(AUTOCAST_STATES, (enabled, torch.get_autocast_dtype(device) if enabled else None), strict=True)
    yield HOOKS, tuple(map(id, hooks_of_others(module)))
    for name, value in vars(module).items():
        if isinstance(value, str | bool) and name != _OWN_MODE:
            yield name, value
        elif type(value) is list and all(isinstance(item, str) for item in value):
            yield name, tuple(value)
