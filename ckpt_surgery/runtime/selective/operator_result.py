"""Keep the result of one operator in a block's forward until the recompute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ckpt_surgery.runtime.offload.offloader import MovedTensor, keep_result
from ckpt_surgery.runtime.selective.policies import Choice, arguments_read, is_mutable
from ckpt_surgery.runtime.tools.tensors import inner_tensors, version, versions
from ckpt_surgery.torch_names import DispatchKey, ExcludeDispatchKey, tree_leaves, tree_map


@dataclass(slots=True)
class OperatorResult:
    """The result of one operator in the forward: `value` is what it returned, if that is kept.

    `form` has the shapes and numbers among its arguments; `choices` are those that keep it, and `flops` is the work of
    computing it; `restore` sets generators to where it left them. With `copied`, the value is a copy; with `in_place`,
    it is that of the argument to which the operator wrote. `aliases` are tensors of the same memory with version
    counters of their own.
    `written` has the values of arguments that it wrote unmarked, by number, such as running statistics.
    """

    operator: Any
    form: tuple[Any, ...]
    choices: Sequence[Choice] = ()
    flops: int = 0
    kept: bool = False
    value: Any = None  # with a MovedTensor for each tensor that has left the device
    versions: list[int] = field(default_factory=list)
    aliases: list[Tensor] = field(default_factory=list)
    copied: bool = False
    in_place: bool = False
    written: Mapping[int, Tensor] = field(default_factory=dict)
    restore: list[Callable[[], object]] = field(default_factory=list)

    def keep(self, result: Any, args: tuple[Any, ...], *, copied: bool) -> None:
        """Keep the operator's result for `args`, or a copy of it."""
        self.kept = True
        self.in_place = is_mutable(self.operator)
        self.copied = copied or self.in_place
        self.value = tree_map(_copy if self.copied else alias_of, args[0] if self.in_place else result)
        self.versions = versions(self.tensors())
        self.written = written_values(arguments_read(self.operator), args)

    def watch(self, alias: Tensor) -> None:
        """Also treat the result as written if this tensor, which shares its memory, is written to."""
        self.aliases.append(alias_of(alias))
        self.versions.append(version(alias))

    def move(self, returned: Mapping[Any, Tensor], *, moves: bool) -> None:
        """Offload what is kept; without `moves`, only what shares its memory with an output that is offloaded anyway.

        `returned` are the outputs of the block by their memory. Nothing may have been written to so far.
        """

        def away(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            output = returned.get(memory_of(leaf)[0])
            moved = None if output is None else keep_result(leaf, self.aliases, output)
            if moved is None and moves:
                moved = keep_result(leaf, self.aliases)
            return leaf if moved is None else moved

        self.value = [away(leaf) for leaf in self.value] if type(self.value) is list else tree_map(away, self.value)
        if not self.tensors():
            self.aliases = []
        self.versions = versions((*self.tensors(), *self.aliases))

    def tensors(self) -> list[Tensor]:
        """List the kept tensors that are on the device."""
        return [leaf for leaf in _leaves(self.value) if isinstance(leaf, Tensor)] if self.kept else []

    def is_written(self) -> bool:
        """Tell whether the kept result was written to."""
        if any(leaf.is_written() for leaf in _leaves(self.value) if isinstance(leaf, MovedTensor)):
            return True
        return versions((*self.tensors(), *self.aliases)) != self.versions

    def again(self, args: tuple[Any, ...]) -> Any:
        """Return the operator's result again, in place of running it."""
        for restore in self.restore:
            restore()
        if self.in_place:
            return args[0].copy_(_on_device(self.value))
        self.write(args)
        return tree_map(_copy if self.copied else alias_of, self.value)

    def write(self, args: tuple[Any, ...]) -> None:
        """Write into the arguments what the operator wrote unmarked, and leave their counts of writes as it does."""
        for index, values in self.written.items():
            args[index].data.copy_(values)


def written_values(read: int | None, args: tuple[Any, ...]) -> dict[int, Tensor]:
    """Return, by number, the values of the arguments after the first `read`: an operator has just written them."""
    if read is None:
        return {}
    return {
        index: _copy(each.detach()) for index, each in enumerate(args) if index >= read and isinstance(each, Tensor)
    }


def _leaves(value: Any) -> list[Any]:
    """List the leaves of a result's value; torch's own function is slower than most kernels."""
    return value if type(value) is list else tree_leaves(value)


def _on_device(value: Any) -> Any:
    return value.tensor() if isinstance(value, MovedTensor) else value


def alias_of(value: Any) -> Any:
    """Return a tensor of the same memory and version counter without a graph; anything else as it is."""
    value = _on_device(value)
    if not isinstance(value, Tensor):
        return value
    with ExcludeDispatchKey(DispatchKey.ADInplaceOrView, False):  # this keeps the counter
        return value.detach()


def _copy(value: Any) -> Any:
    value = _on_device(value)
    return value.clone() if isinstance(value, Tensor) else value


def memory_of(tensor: Tensor) -> tuple[int, int]:
    """Return a key for a tensor's memory while it lives, and its bytes; for a DTensor, on this rank.

    Memory that is not in one piece is counted by its elements.
    """
    local = tensor if type(tensor) is Tensor else next(inner_tensors(tensor))
    if local.layout != torch.strided:
        return id(tensor), local.numel() * local.element_size()
    storage = local.untyped_storage()
    return storage._cdata, storage.nbytes()
