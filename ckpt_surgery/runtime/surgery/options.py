"""Check the options of `wrap_blocks`, and hold them. Nothing else checks their values."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import nn

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.runtime.blocks.selection import matches
from ckpt_surgery.runtime.offload.disk_transport import writable_folder
from ckpt_surgery.runtime.selective.policies import RANDOM, choices_of
from ckpt_surgery.runtime.self_check.schedule import SelfCheckOption
from ckpt_surgery.runtime.tools.rng import active_dropout
from ckpt_surgery.text import size_in_bytes, some


@dataclass(frozen=True, slots=True)
class SaveOption:
    """The options `save`, as pairs of a pattern of blocks and names of operators, and `save_offload`."""

    names: tuple[tuple[str, tuple[str, ...]], ...] = ()
    offload: bool = False

    def pattern_for(self, block: str) -> str | None:
        """Return the first pattern that matches a block's name: it decides what the block keeps."""
        return next((pattern for pattern, _ in self.names if matches(block, pattern)), None)

    def names_for(self, block: str) -> tuple[str, ...]:
        """Return the names of operators whose results a block keeps, by the block's name."""
        return dict(self.names).get(self.pattern_for(block) or "", ())

    def check(self, blocks: Collection[str]) -> None:
        """Raise SurgeryError if a pattern decides for none of the checkpointed blocks."""
        used = set(map(self.pattern_for, blocks))
        if blocks and (unused := [pattern for pattern, _ in self.names if pattern not in used]):
            raise SurgeryError(
                f"save has {unused[0]!r} for no block: there is none of that name that is checkpointed, or an earlier "
                f"pattern names it; the blocks are {some(list(blocks))}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SurgeryOptions:
    """The options of `wrap_blocks`, whose docstring says what each means.

    `stacks` are patterns, `blocks` names of classes, `first` pairs of a pattern and a number, and `offload_pinned` is
    in bytes. Raises SurgeryError if a value is not allowed, or if two options contradict each other.
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
    save: SaveOption = SaveOption()  # frozen

    @classmethod
    def of(
        cls,
        *,
        first: int | Mapping[str, int] | None = None,
        offload: Any = None,
        offload_pinned: Any = None,
        stacks: str | Iterable[str] | None = None,
        blocks: str | type | Iterable[str | type] | None = None,
        save: str | Iterable[str] | Mapping[str, str | Iterable[str]] | None = None,
        save_offload: bool = False,
        **others: Any,
    ) -> SurgeryOptions:
        """Build the options from the arguments of `wrap_blocks`. Raises SurgeryError."""
        limits: object = {"*": first} if isinstance(first, int) else first
        if limits is not None and (not isinstance(limits, Mapping) or not limits):
            raise SurgeryError(f"first is {first!r}: give a number, or a number for each stack by its name")
        kinds = None if blocks is None else _several(blocks, "blocks", "a name or a class", (str, type))
        if type(save_offload) is not bool:
            raise SurgeryError(f"save_offload is {save_offload!r}: give True or False")
        return cls(
            first=None if limits is None else tuple(limits.items()),
            offload=offload_target(offload),
            offload_pinned=pinned_bytes(offload_pinned),
            stacks=None if stacks is None else _several(stacks, "stacks", "a name", (str,)),
            blocks=kinds and tuple(kind if isinstance(kind, str) else kind.__name__ for kind in kinds),
            save=SaveOption(saved_names(save), save_offload),
            **others,
        )

    def __post_init__(self) -> None:
        if self.offload_pinned is not None and self.offload not in (None, "cpu"):
            raise SurgeryError(f'offload_pinned is for offload="cpu": nothing is pinned with offload={self.offload!r}')
        for name in ("use_reentrant", "skip_frozen"):
            if type(getattr(self, name)) is not bool:
                raise SurgeryError(f"{name} is {getattr(self, name)!r}: give True or False")
        preserve: object = self.preserve_rng_state
        if type(preserve) not in (bool, str) or preserve not in (True, False, "unsafe"):
            raise SurgeryError(f'preserve_rng_state is {preserve!r}: give True, False or "unsafe"')
        contexts: object = self.context_fn
        if contexts is not None and not callable(contexts):
            kind = type(contexts).__name__
            raise SurgeryError(f"context_fn is of type {kind}: give a function that returns two contexts")
        if type(self.every_n) is not int or self.every_n < 1:
            raise SurgeryError(f"every_n is {self.every_n!r}: give 1 for every block, 2 for every second, and so on")
        for pattern, number in self.first or ():
            if type(number) is not int or number < 0:
                raise SurgeryError(f"first is {number!r} for {pattern!r}: give the number of blocks to checkpoint")
        check = self.self_check
        if check not in ("first", "always", "never") and (type(check) is not int or check < 1):
            raise SurgeryError(f'self_check is {check!r}: give "first", "always", "never", or n for every n-th step')
        for _, names in self.save.names:
            choices_of(names)
        if self.save.offload and (not self.save.names or self.offload is None):
            raise SurgeryError(
                'save_offload=True moves what save names where offload says: give save and offload="cpu" or a folder'
            )

    @property
    def checks(self) -> SelfCheckOption:
        """When recomputes are checked: never if they may draw other random numbers."""
        return "never" if self.preserve_rng_state == "unsafe" else self.self_check

    def first_of(self, stack: str, blocks: int) -> int:
        """Return how many of a stack's `blocks` may be checkpointed, counted from its start."""
        limits = self.first or ()
        own = next((number for pattern, number in limits if fnmatchcase(stack, pattern)), None)
        return next((number for pattern, number in limits if matches(stack, pattern)), blocks) if own is None else own

    def checkpoints(self, stack: str, index: int, blocks: int, every_n: int | None = None) -> bool:
        """Tell whether the block at `index` of a stack of `blocks` is checkpointed; `every_n` overrides ours."""
        return index < self.first_of(stack, blocks) and index % (every_n or self.every_n) == 0

    def check_blocks(self, blocks: Mapping[str, nn.Module]) -> None:
        """Raise SurgeryError if a block cannot be checkpointed, or if these options would change its gradients.

        `blocks` are all blocks that these options apply to, by name.
        """
        for name, block in blocks.items():
            if isinstance(block, torch.jit.ScriptModule):
                raise SurgeryError(
                    f"{block.original_name} is a scripted block, whose forward cannot be replaced: call wrap_blocks "
                    "before torch.jit.script, or leave it out with blocks="
                )
            if self.preserve_rng_state is not False or RANDOM in self.save.names_for(name):
                continue
            if (dropping := active_dropout(block)) is not None:
                raise SurgeryError(
                    f"preserve_rng_state=False while {dropping} of {type(block).__name__} acts at random: the "
                    "recompute would draw other numbers; keep it True, set the rates to 0, or say "
                    'preserve_rng_state="unsafe"'
                )


def offload_target(offload: Any) -> str | None:
    """Return the option `offload`: "cpu", "disk" or the absolute path of a folder. Raises SurgeryError."""
    if offload is None or offload in ("cpu", "disk"):
        return offload  # type: ignore[no-any-return]
    if not offload or not isinstance(offload, (str, os.PathLike)) or isinstance(os.fspath(offload), bytes):
        raise SurgeryError(
            f'offload is {offload!r}: give "cpu", "disk" or a folder, or None to keep everything where it is'
        )
    return writable_folder(offload)


def pinned_bytes(given: Any) -> int | None:
    """Return the option `offload_pinned` in bytes. Raises SurgeryError if it is not a size."""
    if given is None or (type(given) is int and given >= 0):
        return given
    parsed = size_in_bytes(given) if isinstance(given, str) else None
    if parsed is None:
        raise SurgeryError(
            f'offload_pinned is {given!r}: give bytes as an integer, or a size with its unit, such as "8GB"'
        )
    return parsed


def saved_names(
    save: str | Iterable[str] | Mapping[str, str | Iterable[str]] | None,
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the option `save` as pairs of a block pattern and operator names. Raises SurgeryError."""
    if save is None:
        return ()
    given = save if isinstance(save, Mapping) else {"*": save}
    if not given or not all(isinstance(pattern, str) for pattern in given):
        raise SurgeryError(
            f"save is {save!r}: give names of operators, or such names by the names of stacks or blocks"
        )
    kept = {pattern: _several(names, "save", "a name", (str,)) for pattern, names in given.items()}
    return tuple((pattern, tuple(dict.fromkeys(names))) for pattern, names in kept.items())


def _several(given: Any, option: str, wanted: str, kinds: tuple[type, ...]) -> tuple[Any, ...]:
    """Return one value or several, each of one of these kinds, as a tuple. Raises SurgeryError."""
    values = (given,) if isinstance(given, kinds) or not isinstance(given, Iterable) else tuple(given)
    if not values:
        raise SurgeryError(f"{option} names nothing: leave it out for everything")
    if not all(isinstance(value, kinds) for value in values):
        raise SurgeryError(f"{option} is {given!r}: give {wanted}, or several")
    return values
