"""The options of `wrap_blocks`: the only place where their values are checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import nn

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.runtime.offload.disk_transport import writable_folder
from ckpt_surgery.runtime.selective.policies import RANDOM, choices_of
from ckpt_surgery.runtime.self_check.schedule import SelfCheckOption
from ckpt_surgery.runtime.tools.rng import active_dropout
from ckpt_surgery.text import size_in_bytes, some


@dataclass(frozen=True, slots=True, kw_only=True)
class SurgeryOptions:
    """What `wrap_blocks` was asked for; its docstring says what each option means.

    `stacks` are patterns, `blocks` names of classes, `first` pairs of a pattern and a number, `save` pairs of a
    pattern and names of operators, and `offload_pinned` is in bytes. Raises SurgeryError where a value is none of
    those allowed, or two options contradict each other.
    """

    use_reentrant: bool = False
    every_n: int = 1
    first: tuple[tuple[str, int], ...] | None = None
    offload: str | None = None
    offload_pinned: int | None = None
    preserve_rng_state: bool | Literal["unsafe"] = True
    stacks: tuple[str, ...] | None = None
    skip_frozen: bool = True
    blocks: tuple[str, ...] | None = None
    context_fn: Callable[[], Any] | None = None
    self_check: SelfCheckOption = "first"
    save: tuple[tuple[str, tuple[str, ...]], ...] | None = None
    save_offload: bool = False

    def __post_init__(self) -> None:
        if self.offload_pinned is not None and self.offload not in (None, "cpu"):
            raise SurgeryError(f'offload_pinned is for offload="cpu": nothing is pinned with offload={self.offload!r}')
        if type(self.use_reentrant) is not bool:
            raise SurgeryError(f"use_reentrant is {self.use_reentrant!r}: give True or False")
        preserve: object = self.preserve_rng_state
        if type(preserve) not in (bool, str) or preserve not in (True, False, "unsafe"):
            raise SurgeryError(f'preserve_rng_state is {preserve!r}: give True, False or "unsafe"')
        contexts: object = self.context_fn
        if contexts is not None and not callable(contexts):
            kind = type(contexts).__name__
            raise SurgeryError(f"context_fn is of type {kind}: give a function that returns two contexts")
        if type(self.skip_frozen) is not bool:
            raise SurgeryError(f"skip_frozen is {self.skip_frozen!r}: give True or False")
        if type(self.every_n) is not int or self.every_n < 1:
            raise SurgeryError(f"every_n is {self.every_n!r}: give 1 for every block, 2 for every second, and so on")
        for pattern, number in self.first or ():
            if type(number) is not int or number < 0:
                raise SurgeryError(f"first is {number!r} for {pattern!r}: give the number of blocks to checkpoint")
        if self.self_check not in ("first", "always", "never") and (
            type(self.self_check) is not int or self.self_check < 1
        ):
            raise SurgeryError(
                f'self_check is {self.self_check!r}: give "first", "always", "never", or n for every n-th step'
            )
        for _, names in self.save or ():
            choices_of(names)
        if type(self.save_offload) is not bool:
            raise SurgeryError(f"save_offload is {self.save_offload!r}: give True or False")
        if self.save_offload and (self.save is None or self.offload is None):
            raise SurgeryError(
                'save_offload=True moves what save names where offload says: give save and offload="cpu" or a folder'
            )

    @property
    def checks(self) -> SelfCheckOption:
        """When recomputes are checked: never where it was said that they may draw other numbers."""
        return "never" if self.preserve_rng_state == "unsafe" else self.self_check

    def first_of(self, stack: str, blocks: int) -> int:
        """How many of a stack's blocks, counted from its start, may be checkpointed."""
        limits = self.first or ()
        own = next((number for pattern, number in limits if fnmatchcase(stack, pattern)), None)
        return next((number for pattern, number in limits if matches(stack, pattern)), blocks) if own is None else own

    def saved_by(self, block: str) -> str | None:
        """The pattern in `save` that decides what a block keeps, by the block's name: the first that matches."""
        return next((pattern for pattern, _ in self.save or () if matches(block, pattern)), None)

    def checkpoints(self, stack: str, place: int, blocks: int, every_n: int | None = None) -> bool:
        """Whether the block at this place of a stack of so many is checkpointed, with `every_n` in place of ours."""
        return place < self.first_of(stack, blocks) and place % (every_n or self.every_n) == 0

    def check_save(self, blocks: Collection[str]) -> None:
        """Raise SurgeryError where a pattern in `save` decides for none of the blocks that are checkpointed."""
        kept = dict(self.save or ())
        if blocks and (unused := kept.keys() - map(self.saved_by, blocks)):
            pattern = next(pattern for pattern in kept if pattern in unused)
            raise SurgeryError(
                f"save has {pattern!r} for no block: there is none of that name that is checkpointed, or an earlier "
                f"pattern names it; the blocks are {some(list(blocks))}"
            )

    def check_blocks(self, blocks: Mapping[str, nn.Module]) -> None:
        """Raise SurgeryError where a block cannot be checkpointed, or these options would give it other gradients.

        `blocks` are all that these options are for, by name.
        """
        kept = dict(self.save or ())
        for name, block in blocks.items():
            if isinstance(block, torch.jit.ScriptModule):
                raise SurgeryError(
                    f"{block.original_name} is a scripted block, whose forward cannot be replaced: call wrap_blocks "
                    "before torch.jit.script, or leave it out with blocks="
                )
            if self.preserve_rng_state is not False or RANDOM in kept.get(self.saved_by(name) or "", ()):
                continue
            if (dropping := active_dropout(block)) is not None:
                raise SurgeryError(
                    f"preserve_rng_state=False while {dropping} of {type(block).__name__} acts at random: the "
                    "recompute would draw other numbers; keep it True, set the rates to 0, or say "
                    'preserve_rng_state="unsafe"'
                )


def offload_place(offload: Any) -> str | None:
    """The option `offload`: "cpu", "disk" or the absolute path of a folder. Raises SurgeryError where it is none."""
    if offload is None or offload in ("cpu", "disk"):
        return offload  # type: ignore[no-any-return]
    if not offload or not isinstance(offload, (str, os.PathLike)) or isinstance(os.fspath(offload), bytes):
        raise SurgeryError(
            f'offload is {offload!r}: give "cpu", "disk" or a folder, or None to keep everything where it is'
        )
    return writable_folder(offload)


def pinned_bytes(given: Any) -> int | None:
    """The option `offload_pinned` in bytes. Raises SurgeryError where it is no size."""
    if given is None or (type(given) is int and given >= 0):
        return given
    said = size_in_bytes(given) if isinstance(given, str) else None
    if said is None:
        raise SurgeryError(
            f'offload_pinned is {given!r}: give bytes as an integer, or a size with its unit, such as "8GB"'
        )
    return said


def stack_patterns(stacks: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """The option `stacks` as a tuple of patterns. Raises SurgeryError where it names none, or is something else."""
    return None if stacks is None else _several(stacks, "stacks", "a name", (str,))


def first_blocks(first: int | Mapping[str, int] | None) -> tuple[tuple[str, int], ...] | None:
    """The option `first` as pairs of a pattern of stacks and a number. Raises SurgeryError."""
    if first is None:
        return None
    if isinstance(first, int):
        return (("*", first),)
    given: object = first
    if not isinstance(given, Mapping) or not given:
        raise SurgeryError(f"first is {first!r}: give a number, or a number for each stack by its name")
    return tuple(first.items())


def saved_names(
    save: str | Iterable[str] | Mapping[str, str | Iterable[str]] | None,
) -> tuple[tuple[str, tuple[str, ...]], ...] | None:
    """The option `save` as pairs of a pattern of blocks and names of operators. Raises SurgeryError."""
    if save is None:
        return None
    given = save if isinstance(save, Mapping) else {"*": save}
    if not given or not all(isinstance(pattern, str) for pattern in given):
        raise SurgeryError(
            f"save is {save!r}: give names of operators, or such names by the names of stacks or blocks"
        )
    return tuple(
        (pattern, tuple(dict.fromkeys(_several(names, "save", "a name", (str,))))) for pattern, names in given.items()
    )


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern names a stack or a block, or a module around it."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def class_names(blocks: str | type | Iterable[str | type] | None) -> tuple[str, ...] | None:
    """The option `blocks` as a tuple of names. Raises SurgeryError where it names none, or is something else."""
    if blocks is None:
        return None
    kinds = _several(blocks, "blocks", "a name or a class", (str, type))
    return tuple(kind if isinstance(kind, str) else kind.__name__ for kind in kinds)


def _several(given: Any, option: str, wanted: str, kinds: tuple[type, ...]) -> tuple[Any, ...]:
    """One value or several, each of one of these kinds. Raises SurgeryError."""
    values = (given,) if isinstance(given, kinds) or not isinstance(given, Iterable) else tuple(given)
    if not values:
        raise SurgeryError(f"{option} names nothing: leave it out for everything")
    if not all(isinstance(value, kinds) for value in values):
        raise SurgeryError(f"{option} is {given!r}: give {wanted}, or several")
    return values
