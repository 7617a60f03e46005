"""The dictionaries of modules: what they held, and whether they still do. Attributes, parameters, submodules ..."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from itertools import chain
from operator import call, is_, itemgetter
from typing import Any, cast

from torch import nn

_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}
_TABLES = ("_parameters", "_buffers", "_modules")
UNWATCHED = _OF_EVERY_MODULE | {"forward", "_gradient_checkpointing_func", "_old_forward"}
"""The attributes of a module that are not the block's own: torch's, and what libraries put there to run it."""

BELONGS_TO_CALL = "belongs_to_call"
"""The attribute of a forward that a recompute has to run as the first pass did, also after it was taken away."""


class Role(Enum):
    """What a dictionary of a module holds."""

    ATTRIBUTES = auto()
    PARAMETERS = auto()
    BUFFERS = auto()
    MODULES = auto()
    OF_PARAMETER = auto()
    """The attributes of one of its parameters."""


@dataclass(frozen=True, slots=True)
class Space:
    """A dictionary that belongs to the module `home`."""

    home: nn.Module
    role: Role
    held: dict[str, Any]

    def decides(self, name: str) -> bool:
        """Whether a change of this name can change what the block writes, so that a call has to be watched again."""
        return name == "training" if self.role is Role.ATTRIBUTES else self.role is not Role.OF_PARAMETER

    def names(self) -> list[str] | None:
        """The names that count among the attributes of a module, which are those that not every module has.

        None for other dictionaries, where all of them do.
        """
        if self.role is not Role.ATTRIBUTES:
            return None
        return [name for name in self.held if name not in _OF_EVERY_MODULE]


def spaces_of(module: nn.Module) -> Iterator[Space]:
    """The dictionaries of a module, without those of its submodules."""
    yield Space(module, Role.ATTRIBUTES, vars(module))
    yield Space(module, Role.PARAMETERS, module._parameters)
    yield Space(module, Role.BUFFERS, module._buffers)
    yield Space(module, Role.MODULES, cast(dict[str, Any], module._modules))
    for parameter in module._parameters.values():
        if parameter is not None:
            yield Space(module, Role.OF_PARAMETER, vars(parameter))


class DictionaryCopies:
    """Dictionaries, and copies of them as they were.

    Whether the copies still hold is asked three times in every call. Of the attributes of a module only those with
    `names` and torch's tables count, and how many there are. Where something was `replaced` in the copies, they never
    hold.
    """

    __slots__ = ("_empty", "_filled", "_lengths", "_picks", "_replaced", "_values", "copies", "dicts")

    def __init__(
        self,
        dicts: list[dict[str, Any]],
        copies: list[dict[str, Any]],
        names: Sequence[Sequence[str] | None],
        *,
        replaced: bool = False,
    ) -> None:
        self.dicts = dicts
        self.copies = copies
        self._replaced = replaced
        counted = [
            tuple(copy) if counting is None else (*counting, *_TABLES)
            for copy, counting in zip(copies, names, strict=True)
        ]
        self._empty = [held for held, copy in zip(dicts, copies, strict=True) if not copy]
        self._filled = [held for held, copy in zip(dicts, copies, strict=True) if copy]
        self._lengths = list(map(len, filter(None, copies)))
        self._picks = [_picker(names_here) for names_here in counted if names_here]
        self._values = list(chain.from_iterable(map(call, self._picks, filter(None, copies))))

    def still_hold(self) -> bool:
        """Whether the dictionaries hold the very objects that their copies do.

        What is only equal is another object: a parameter of one element equals the one it replaces, and has another
        gradient. The time goes into memory that no cache holds any more, and so as little as can be is read.
        """
        if self._replaced:
            return False
        try:
            return (
                not any(self._empty)
                and list(map(len, self._filled)) == self._lengths
                and all(map(is_, chain.from_iterable(map(call, self._picks, self._filled)), self._values))
            )
        except KeyError:  # a name is gone
            return False


@cache
def _picker(names: tuple[str, ...]) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    """What picks the values under these names; modules of one class share it."""
    return itemgetter(*names) if len(names) > 1 else itemgetter(*names, *names)  # of one name it returns no tuple


def identical(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Whether two dictionaries hold the very same objects, in the same order."""
    return len(ours) == len(theirs) and all(map(is_, ours.values(), theirs.values())) and ours.keys() == theirs.keys()


def differing(ours: dict[str, Any], theirs: dict[str, Any]) -> Iterator[str]:
    """The keys under which two dictionaries hold other objects, or only one holds something."""
    for name in ours.keys() | theirs.keys():
        if ours.get(name, _Absent) is not theirs.get(name, _Absent):
            yield name


class _Absent:
    """Stands in for an attribute that is not there."""


def put(held: dict[str, Any], kept: dict[str, Any], besides: Collection[str] = ()) -> None:
    """Make a dictionary of a module what it was, but for `UNWATCHED` names and those in `besides`.

    A forward that says so itself, by `BELONGS_TO_CALL`, is put back for the recompute: it decides what that makes.
    """
    if identical(held, kept):
        return
    for name in list(differing(held, kept)):
        belongs = name == "forward" and any(hasattr(each.get(name), BELONGS_TO_CALL) for each in (held, kept))
        if (name in UNWATCHED and not belongs) or name in besides:
            continue
        if name in kept:
            held[name] = kept[name]
        else:
            del held[name]
