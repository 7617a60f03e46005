"""Name the arguments of one block call, find the past state among them, and leave out caches made for the call."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

from torch import Tensor, nn

from ckpt_surgery.model_patches.release_names import CACHE_CLASS, KEEPS_CACHE
from ckpt_surgery.model_patches.vocabulary import PAST_STATE
from ckpt_surgery.runtime.blocks.library_switch import models_that_read_caches
from ckpt_surgery.runtime.tools.classes import class_of, descends, facts_of
from ckpt_surgery.runtime.tools.containers import PLAIN, hidden_tensors, tensors
from ckpt_surgery.runtime.tools.tensors import without_graph

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of one call."""

NEVER_PAST = dict.fromkeys((*PLAIN, Tensor, nn.Parameter, dict, list, tuple))
"""Types whose values are never past state that a block writes; a dict, as torch 2.8 cannot compile a set of types."""
CACHE_DEPTH = 6
"""How deep the tensors of a cache may lie: an encoder-decoder cache holds caches, and these hold layers."""
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def none_is_past(values: Iterable[Any]) -> bool:
    """Tell, by types alone so that it compiles, whether none of these values is past state that a block writes."""
    for value in values:  # noqa: SIM110 -- each call of a block asks, and a generator costs twice as much
        if type(value) not in NEVER_PAST:
            return False
    return True


def is_cache(value: Any) -> bool:
    """Tell whether a value is a `Cache` of any release of transformers."""
    return descends(type(value), CACHE_CLASS)


def positional_names(forward: Callable[..., Any]) -> tuple[str, ...]:
    """Return the parameters of `forward` that take positional arguments; none if its signature cannot be read."""
    try:
        parameters = inspect.signature(forward).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(p.name for p in parameters if p.kind in _POSITIONAL)


def name_at(names: Sequence[str], index: int) -> str:
    """Return the name of a positional argument; those taken by `*args` are numbered."""
    return names[index] if index < len(names) else f"argument {index + 1}"


@dataclass(frozen=True, slots=True)
class BlockSignature:
    """What the arguments of a block mean: `names` are its positional parameters, `past` those that hold past state.

    `place` names the block in messages, and `layer` is its index in caches. A block with `keeps_cache` declares that
    it only reads the cache that it is given. With `cache_decides`, the block computes something else without a cache,
    or another part of the model reads the cache.
    """

    place: str
    names: tuple[str, ...]
    past: frozenset[str]
    layer: int
    keeps_cache: bool
    cache_decides: bool
    is_of_transformers: bool

    @classmethod
    def of(cls, place: str, block: nn.Module, forward: Callable[..., Any], *, fills_cache: bool) -> BlockSignature:
        """Read the signature of `forward`, which runs `block`."""
        owned = (name.rpartition(".") for name in facts_of(block).past_state)
        own = {name for owner, _, name in owned if not owner or descends(type(block), owner)}
        indices = (getattr(module, "layer_idx", None) for module in block.modules())
        return cls(
            place,
            positional_names(forward),
            PAST_STATE | own,
            next((index for index in indices if isinstance(index, int)), 0),
            bool(getattr(block, KEEPS_CACHE, False)),
            fills_cache or bool(models_that_read_caches(block)),
            class_of(block).__module__.startswith("transformers."),
        )

    def named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield every argument with its name; those taken by `*args` are numbered."""
        for index, value in enumerate(args):
            yield name_at(self.names, index), value
        yield from kwargs.items()

    def holder_of(self, tensor: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the name of the argument that holds a tensor; "" if none does."""
        named = self.named(args, kwargs)
        return next((name for name, value in named if any(part is tensor for part in tensors(value))), "")

    def without_own_caches(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], given: Container[Any] = ()
    ) -> Arguments:
        """Leave out the empty caches that a model made for its blocks to fill: they would hold activations.

        Caches that existed before are in `given`, and stay: a later forward may read them. Blocks of other libraries
        also keep theirs, as do those of transformers that read what other blocks have left in a cache.
        """
        if none_is_past((*args, *kwargs.values())) or not self.is_of_transformers or self.cache_decides:
            return args, kwargs

        def without(name: str, value: Any) -> Any:
            if not (is_cache(value) and self.is_past(name, value)):
                return value
            try:
                holds_something = int(value.get_seq_length(self.layer)) > 0
            except Exception:  # recurrent caches have no length, or raise: look at their values
                holds_something = any(bool(t.any()) for t in hidden_tensors(value) if t.is_floating_point())
            return value if holds_something or value in given else None

        values = [without(name, value) for name, value in self.named(args, kwargs)]
        if all(map(is_, values, (*args, *kwargs.values()))):
            return args, kwargs
        return tuple(values[: len(args)]), dict(zip(kwargs, values[len(args) :], strict=True))

    def is_past(self, name: str, value: Any) -> bool:
        """Tell whether an argument is a cache that the block would write to."""
        if self.keeps_cache or type(value) in PLAIN or isinstance(value, (Tensor, tuple, list, Mapping)):
            return False
        if name not in self.past:
            return is_cache(value)
        return any("cache" in base.__name__.lower() for base in type(value).__mro__)  # there are several classes


@dataclass(frozen=True, slots=True)
class CacheAtEntry:
    """A cache as it was at entry to a call. Its `tensors` are shared: versions reveal writes, which are refused."""

    cache: Any
    tensors: tuple[Tensor, ...]

    @classmethod
    def of(cls, cache: Any) -> CacheAtEntry:
        """Record a cache before a block writes to it."""
        return cls(cls._copy(cache), tuple(hidden_tensors(cache)))

    def again(self) -> Any:
        """Return a copy of the cache for a recompute to write to."""
        return self._copy(self.cache)

    @staticmethod
    def _copy(cache: Any) -> Any:
        """Copy the objects that hold a cache's tensors, which a block replaces or extends; share the tensors."""
        held = {id(tensor): tensor for tensor in hidden_tensors(cache, CACHE_DEPTH)}
        return copy.deepcopy(cache, {key: without_graph(t) if t.grad_fn is not None else t for key, t in held.items()})
