"""Intercept a block's one call of a registered attention function, while the block's own code runs.

transformers looks the function up by a name in a module's configuration. While a block runs here, its modules have a
stand-in for that configuration, whose name leads to a function of ours. That function asks what is set on its thread;
other models keep their configuration.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from torch import Tensor, nn

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.model_patches.release_names import (
    ATTENTION_NAME,
    ATTENTION_REGISTRY,
    EAGER_FUNCTION,
    EAGER_NAME,
)
from ckpt_surgery.runtime.tools.containers import PLAIN

_NOW = threading.local()
"""What answers the intercepted calls on a thread, as `answer`."""
Answer = Callable[["AttentionCall", "Heads"], Tensor]
Heads = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values, each (batch, heads, tokens, width)."""


@dataclass(frozen=True, slots=True, eq=False)
class AttentionCall:
    """A call of `function` by `module`, without the heads."""

    function: Callable[..., Any]
    module: nn.Module
    mask: Any
    options: Mapping[str, Any]

    def run(self, heads: Heads) -> Tensor:
        """Return the first result, (batch, tokens, heads, width)."""
        result: Tensor = self.function(self.module, *heads, self.mask, **self.options)[0]
        return result

    def groups(self, heads: Heads, most: int) -> int:
        """Return into how many groups, at most `most`, the heads can be split: a key and its queries stay together."""
        queries, keys, values = (each.shape[1] for each in heads)
        by_head = isinstance(self.mask, Tensor) and self.mask.dim() == 4 and self.mask.shape[1] != 1
        if by_head or queries % keys or values != keys:
            return 1
        return max(count for count in range(1, min(most, keys) + 1) if keys % count == 0)

    def is_like(self, other: AttentionCall) -> bool:
        """Tell whether the call of another tile is given the same arguments, except the heads."""
        if self.mask is not other.mask or self.module is not other.module:
            return False
        if self.options.keys() != other.options.keys():
            return False
        pairs = ((value, other.options[name]) for name, value in self.options.items())
        return all(one is two or (type(one) in PLAIN and one == two) for one, two in pairs)


class CannotCut(SurgeryError):
    """A call of a block cannot be cut at its attention."""


class Captured(BaseException):
    """The end of a run of a block at its attention. No `except Exception` in the block catches it."""

    def __init__(self, call: AttentionCall, heads: Heads) -> None:
        self.call = call
        self.heads = heads


@contextmanager
def intercepted(block: nn.Module) -> Iterator[None]:
    """Have the attention calls of a block answered as `answering` says, inside the `with` and on this thread.

    Raises CannotCut if no module of the block has a configuration that names an attention function.
    """
    every = [vars(part) for part in block.modules()]
    homes = [home for home in every if isinstance(getattr(home.get("config"), ATTENTION_NAME, None), str)]
    if not homes:
        raise CannotCut("it looks up no attention function of transformers")
    configs = [home["config"] for home in homes]
    for home, config in zip(homes, configs, strict=True):
        home["config"] = _StandIn(config)
    try:
        yield
    finally:
        for home, config in zip(homes, configs, strict=True):
            home["config"] = config


@contextmanager
def answering(answer: Answer) -> Iterator[None]:
    """Let `answer` give the results of intercepted attention, on this thread."""
    outer, _NOW.answer = getattr(_NOW, "answer", None), answer
    try:
        yield
    finally:
        _NOW.answer = outer


def capture(call: AttentionCall, heads: Heads) -> Tensor:
    """Answer a call by ending the run of the block. Raises Captured."""
    raise Captured(call, heads)


class _StandIn:
    """A stand-in for a configuration, with another name for the attention function."""

    def __init__(self, config: Any) -> None:
        self.__dict__["_config"] = config

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.__dict__["_config"], name)
        return _registered(value) if name == ATTENTION_NAME else value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_config"], name, value)


class _RegisteredName(str):
    """The name of an attention function: equal to the original when compared, but a key of its own in a registry."""

    __slots__ = ()

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        # never equal to "eager": code that compares with it would call that function without the registry
        return self is other or (other != EAGER_NAME and str.__eq__(self, other) is True)

    def __ne__(self, other: object) -> bool:
        return not self == other


@cache
def _registered(name: str) -> _RegisteredName:
    registry = getattr(sys.modules["transformers.modeling_utils"], ATTENTION_REGISTRY)
    ours = _RegisteredName(name)
    type(registry).register(ours, partial(_called, registry, name))
    return ours


def _called(
    registry: Any,
    name: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,
    **options: Any,
) -> tuple[Any, ...]:
    file = sys.modules[type(module).__module__]
    registry = getattr(file, ATTENTION_REGISTRY, registry)  # some files have their own
    function = getattr(file, EAGER_FUNCTION) if name == EAGER_NAME else registry[name]
    answer: Answer | None = getattr(_NOW, "answer", None)
    if answer is None:
        return tuple(function(module, query, key, value, attention_mask, **options))
    return answer(AttentionCall(function, module, attention_mask, options), (query, key, value)), None
