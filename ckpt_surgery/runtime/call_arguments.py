"""The arguments of one call of a block: their names, and past state left out of them.

Looks at values only. What runs a block, and how often, is in `recompute`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import Tensor, nn

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.model_patches.vocabulary import PAST_STATE
from ckpt_surgery.runtime.classes import descends, facts_of
from ckpt_surgery.runtime.containers import PLAIN, hidden_tensors

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of one call."""

_NEVER_PAST = PLAIN | {Tensor, nn.Parameter, dict, list, tuple}
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def is_cache(value: Any) -> bool:
    """Whether a value is a `Cache` of whatever release of transformers."""
    return _is_cache_class(type(value))  # type: ignore[arg-type]  # a class is hashable


@cache
def _is_cache_class(kind: type) -> bool:
    return descends(kind, "Cache")


def positional_names(forward: Callable[..., Any]) -> tuple[str, ...]:
    """The parameters of `forward` that can be given by position; none where its signature cannot be read."""
    try:
        parameters = inspect.signature(forward).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(p.name for p in parameters if p.kind in _POSITIONAL)


def name_at(names: Sequence[str], place: int) -> str:
    """The name of a positional argument; those that `*args` takes are numbered."""
    return names[place] if place < len(names) else f"argument {place + 1}"


@dataclass(frozen=True, slots=True)
class BlockSignature:
    """What the parameters of a block mean: `names` of the positional ones, and `past`, those that hold past state.

    `place` names the block in messages, and `layer` is its index in caches. A block with `keeps_cache` declares that
    it only reads the cache that it is given. With `needs_use_cache` the model around it uses what the block returns
    for a cache.
    """

    place: str
    names: tuple[str, ...]
    past: frozenset[str]
    layer: int
    keeps_cache: bool
    needs_use_cache: bool

    @classmethod
    def of(cls, place: str, block: nn.Module, forward: Callable[..., Any]) -> BlockSignature:
        """That of `forward`, which runs `block`."""
        own = {name.rpartition(".")[2] for name in facts_of(block).past_state if _concerns(name, block)}
        return cls(
            place,
            positional_names(forward),
            PAST_STATE | own,
            _layer_index(block),
            bool(getattr(block, "_can_checkpoint_with_cache", False)),
            bool(facts_of(block).needs_cache),
        )

    def named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Every argument with its name; those that `*args` takes are numbered."""
        for place, value in enumerate(args):
            yield name_at(self.names, place), value
        yield from kwargs.items()

    def without_past(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """The call without caches: None stands in for each, and `use_cache` is False.

        Past state that a block can only read, such as a tuple of tensors, stays. Raises SurgeryError where a cache
        already holds something for this layer: without it the block would compute something else.
        """
        if not any(value is True or type(value) not in _NEVER_PAST for value in (*args, *kwargs.values())):
            return args, kwargs
        changed = {
            number: None if value is not True else False
            for number, (name, value) in enumerate(self.named(args, kwargs))
            if (value is True and name == "use_cache" and not self.needs_use_cache) or self._is_past(name, value)
        }
        if not changed:
            return args, kwargs
        for number, (name, value) in enumerate(self.named(args, kwargs)):
            if changed.get(number, True) is None and _holds_something(value, self.layer):
                raise SurgeryError(
                    f"{self.place} got past state in {name} that is not empty: a checkpointed block cannot use it, "
                    "because the recompute would write it a second time; train without it, or switch checkpointing off"
                )
        count = len(args)
        return (
            tuple(changed.get(number, value) for number, value in enumerate(args)),
            {name: changed.get(count + number, value) for number, (name, value) in enumerate(kwargs.items())},
        )

    def _is_past(self, name: str, value: Any) -> bool:
        if self.keeps_cache or type(value) in PLAIN or isinstance(value, (Tensor, tuple, list, Mapping)):
            return False
        return is_cache(value) or name in self.past


def _layer_index(block: nn.Module) -> int:
    indices = (getattr(module, "layer_idx", None) for module in block.modules())
    return next((index for index in indices if isinstance(index, int)), 0)


def _concerns(name: str, block: nn.Module) -> bool:
    owner = name.rpartition(".")[0]
    return not owner or descends(type(block), owner)


def _holds_something(cache: Any, layer: int) -> bool:
    try:
        return int(cache.get_seq_length(layer)) > 0
    except Exception:  # recurrent caches have no length, or raise; then their values tell
        return any(bool(t.any()) for t in hidden_tensors(cache) if t.is_floating_point())
