"""One call of a block, taken apart: gradient tensors, past state, and the rest; and put together again.

Looks at values only. What runs a block, and how often, is in `recompute`.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import is_
from typing import Any

from torch import Tensor, nn

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.model_patches import family_facts
from ckpt_surgery.model_patches.family import FamilyFacts
from ckpt_surgery.model_patches.vocabulary import PAST_STATE

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of one call."""

PLAIN = frozenset({bool, bytes, complex, float, int, str, type(None)})
"""Types whose values hold nothing."""
_NEVER_PAST = PLAIN | {Tensor, nn.Parameter, dict, list, tuple}
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor in `value`, however deep in tuples, lists, mappings and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    else:
        for _, item in items(value):
            yield from tensors(item)


def items(value: Any) -> list[tuple[Any, Any]]:
    """What a tuple, list, mapping or dataclass holds, each with its place; nothing for any other value."""
    if type(value) in PLAIN:
        return []
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]
    return []


def identities(container: Any) -> list[tuple[Any, int]]:
    """Which objects a dictionary, or any other collection, holds at which places."""
    pairs = container.items() if isinstance(container, dict) else enumerate(container)
    return [(place, id(value)) for place, value in pairs]


def is_differentiable(tensor: Tensor) -> bool:
    """Whether a tensor of this dtype can carry gradient."""
    return tensor.is_floating_point() or tensor.is_complex()


def hidden_tensors(value: Any, depth: int = 4) -> Iterator[Tensor]:
    """The tensors in an object that is no container: in its attributes, and in those of objects there."""
    if isinstance(value, Tensor):
        yield value
    elif depth and not isinstance(value, (nn.Module, type)) and type(value) not in PLAIN:
        contents = list(value) if isinstance(value, (set, frozenset, deque)) else [item for _, item in items(value)]
        for item in contents or list(_attributes(value)):
            yield from hidden_tensors(item, depth - 1)


def _attributes(value: Any) -> Iterator[Any]:
    yield from getattr(value, "__dict__", {}).values()
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            yield getattr(value, name, None)


def is_cache(value: Any) -> bool:
    """Whether a value is a `Cache` of whatever release of transformers."""
    return _is_cache_class(type(value))  # type: ignore[arg-type]  # a class is hashable


@cache
def _is_cache_class(kind: type) -> bool:
    return descends(kind, "Cache")


def descends(kind: type, name: str) -> bool:
    """Whether a class, or one that it inherits from, is called `name`."""
    return any(base.__name__ == name for base in kind.__mro__)


def facts_of(module: nn.Module) -> FamilyFacts:
    """What `model_patches` knows about the family that a module's class belongs to."""
    return _facts_of_class(class_of(module))  # type: ignore[arg-type]  # a class is hashable


def class_of(module: nn.Module) -> type[nn.Module]:
    """The class of a module as its author wrote it: FSDP2 puts one of torch's own before it."""
    return next(kind for kind in type(module).__mro__ if not kind.__module__.startswith("torch.distributed."))


@cache
def _facts_of_class(kind: type) -> FamilyFacts:
    home, _, file = kind.__module__.rpartition(".")
    return family_facts(f"{home.replace('.', '/')}/{file}.py")


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of a tensor that was taken out of a value."""

    index: int


@dataclass(frozen=True, slots=True)
class _Box:
    """A container as it was: one like it that holds recipes, and these by their places."""

    like: Any
    contents: tuple[tuple[Any, Any], ...]


class Parts:
    """Takes values apart: the tensors that are `wanted`, each once, and recipes to put the values together again.

    Containers that can be written into are copied, so that a recipe keeps them as they were. Tensors that are not
    wanted stay in the recipes and are listed in `left`, with the name they came under; objects of which nothing is
    known are listed in `opaque`. `writable` tells whether there was a container that can be written into.
    """

    __slots__ = ("_places", "_wanted", "left", "opaque", "tensors", "writable")

    def __init__(self, wanted: Callable[[Tensor], bool]) -> None:
        self.tensors: list[Tensor] = []
        self.left: list[tuple[str, Tensor]] = []
        self.opaque: list[tuple[str, Any]] = []
        self.writable = False
        self._places: dict[int, Slot] = {}
        self._wanted = wanted

    def take(self, value: Any, name: str = "") -> Any:
        """The recipe of a value."""
        kind = type(value)
        if kind in PLAIN:
            return value
        if isinstance(value, Tensor):
            return self._tensor(value, name)
        if kind is tuple:
            recipes = [self.take(item, name) for item in value]
            return value if all(map(is_, recipes, value)) else _Box((), tuple(enumerate(recipes)))
        contents = items(value)
        if not contents and not isinstance(value, (list, MutableMapping)):
            if not isinstance(value, (tuple, type)):
                self.opaque.append((name, value))
            return value
        taken = tuple((place, self.take(item, name)) for place, item in contents)
        if isinstance(value, tuple) and all(new is old for (_, new), (_, old) in zip(taken, contents, strict=True)):
            return value
        self.writable |= not isinstance(value, tuple)
        return _Box(_rebuilt(value, taken), taken)

    def _tensor(self, tensor: Tensor, name: str) -> Any:
        if not self._wanted(tensor):
            self.left.append((name, tensor))
            return tensor
        if (slot := self._places.get(id(tensor))) is not None:
            return slot
        slot = self._places[id(tensor)] = Slot(len(self.tensors))
        self.tensors.append(tensor)
        return slot


def fill(recipe: Any, taken: Sequence[Tensor]) -> Any:
    """The value of a recipe, with `taken` in the places of the tensors; its containers are new ones."""
    kind = type(recipe)
    if kind is Slot:
        return taken[recipe.index]
    if kind is not _Box:
        return recipe
    contents = [(place, fill(item, taken)) for place, item in recipe.contents]
    return _rebuilt(recipe.like, contents)


def paths(recipe: Any) -> dict[int, tuple[Any, ...]]:
    """Where the slots of a recipe are: the places to go through, by the slot's index."""
    if type(recipe) is Slot:
        return {recipe.index: ()}
    if type(recipe) is not _Box:
        return {}
    return {index: (place, *rest) for place, item in recipe.contents for index, rest in paths(item).items()}


def at(value: Any, path: Sequence[Any]) -> Any:
    """What stands in a value at the end of a path; None where the path leads nowhere."""
    for place in path:
        value = dict(items(value)).get(place)
    return value


def _rebuilt(like: Any, contents: Sequence[tuple[Any, Any]]) -> Any:
    """A container like this one, with other contents."""
    if isinstance(like, tuple):
        values = [value for _, value in contents]
        return type(like)(*values) if hasattr(like, "_fields") else type(like)(values)
    new = copy.copy(like)
    if isinstance(new, (list, MutableMapping)):
        for place, value in contents:
            new[place] = value
    else:
        for name, value in contents:
            object.__setattr__(new, name, value)
    return new


def positional_names(forward: Callable[..., Any]) -> tuple[str, ...]:
    """The parameters of `forward` that can be given by position; none where it does not tell."""
    try:
        parameters = inspect.signature(forward).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(p.name for p in parameters if p.kind in _POSITIONAL)


def name_at(names: Sequence[str], place: int) -> str:
    """The name of a positional argument; those that `*args` takes are numbered."""
    return names[place] if place < len(names) else f"argument {place + 1}"


@dataclass(frozen=True, slots=True)
class Signature:
    """What the parameters of a block mean: `names` of the positional ones, and which hold past state.

    `place` says in words which block it is, `layer` is its index in caches. A block with `keeps_cache` only reads
    the cache that it is given, and says so. With `needs_use_cache` the model around it counts on what the block
    returns for a cache.
    """

    place: str
    names: tuple[str, ...]
    past: frozenset[str]
    layer: int
    keeps_cache: bool
    needs_use_cache: bool

    @classmethod
    def of(cls, place: str, block: nn.Module, forward: Callable[..., Any]) -> Signature:
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
        """The call without caches: None stands for each, and `use_cache` is off.

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
                    f"{self.place} got past state in {name} that is not empty: a checkpointed block cannot use it, as "
                    "the recompute would write it a second time; train without it, or switch checkpointing off"
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
