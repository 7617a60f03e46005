"""What a plan can do to a model: as data, as the Python that does it, and done, with one `undo` for all of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from ckpt_surgery.distributed import fuse_loss, tile_mlp
from ckpt_surgery.runtime.surgery import Surgery
from ckpt_surgery.runtime.undo import Undoable
from ckpt_surgery.runtime.wrap import wrap_blocks
from ckpt_surgery.text import listed, plural

_PLACE = re.compile(r"(.*?)\.(\d+)\.([A-Za-z_][\w.]*)")
"""A module inside an element of a stack: the stack, the number, and the name in the element, without numbers."""


@dataclass(frozen=True, slots=True)
class PlanChoice:
    """What is done: the first blocks of each stack checkpointed, their inputs offloaded, the loss fused, MLPs tiled.

    `tiled` are the full names of the MLPs, `shard_size` the most tokens that they take at a time. `save` names the
    operators of checkpointed blocks whose results are kept, as in `wrap_blocks`.
    """

    first: Mapping[str, int] = field(default_factory=dict)
    offload: bool = False
    fused_loss: bool = False
    tiled: tuple[str, ...] = ()
    shard_size: int = 0
    save: tuple[str, ...] = ()

    @property
    def checkpoints(self) -> bool:
        """Whether any block is checkpointed."""
        return any(self.first.values())

    @property
    def beside_numbers(self) -> Hashable:
        """What choices have in common that differ in the numbers of blocks alone."""
        return self.offload, self.fused_loss, self.tiled, self.shard_size, self.save

    @property
    def is_needed(self) -> bool:
        """Whether anything is done at all."""
        return self.checkpoints or self.fused_loss or bool(self.tiled)

    def code(self, blocks: Mapping[str, int]) -> str:
        """The Python that does it, a call on each line; `blocks` are the numbers of blocks in the stacks."""
        calls = self.arguments()
        if self.checkpoints and all(blocks[stack] == number for stack, number in self.first.items()):
            del calls["wrap_blocks"]["first"]
        return "\n".join(f"{function}({', '.join(_written(**given))})" for function, given in calls.items())

    def arguments(self) -> dict[str, dict[str, Any]]:
        """The calls that do it, by the names of the functions, with their arguments beside the model."""
        calls: dict[str, dict[str, Any]] = {}
        if self.tiled:
            calls["tile_mlp"] = {"modules": list(self.tiled), "shard_size": self.shard_size}
        if self.fused_loss:
            calls["fuse_loss"] = {}
        if self.checkpoints:
            offload = {"offload": "cpu"} if self.offload else {}
            calls["wrap_blocks"] = {"first": dict(self.first), **offload}
            if self.save:
                calls["wrap_blocks"]["save"] = list(self.save)
        return calls

    def name(self, blocks: Mapping[str, int]) -> str:
        """What is done in a few words; `blocks` are the numbers of blocks in the stacks."""
        return ", ".join([self.blocks_name(blocks), *self.beside])

    def blocks_name(self, blocks: Mapping[str, int]) -> str:
        """Which blocks are checkpointed, and how, in a few words; `blocks` as in `name`."""
        counted = f"{sum(self.first.values())} of {plural(sum(blocks.values()), 'block')}"
        saved = [f"{listed(self.save)} saved"] if self.save else []
        return ", ".join([counted, *(["offloaded"] if self.offload else []), *saved])

    @property
    def beside(self) -> list[str]:
        """What is done beside checkpointing, in a few words."""
        return [*(["fused loss"] if self.fused_loss else []), *(["tiled MLPs"] if self.tiled else [])]

    def apply(self, model: nn.Module, *, self_check: Literal["first", "never"] = "first") -> AppliedPlan:
        """Do it. Raises SurgeryError as the calls do; what was done before is then taken back."""
        done: list[Undoable] = []
        try:
            for call in self._calls(model, self_check):
                done.append(call())
        except BaseException:
            AppliedPlan(done).undo()
            raise
        return AppliedPlan(done)

    def _calls(self, model: nn.Module, self_check: Literal["first", "never"]) -> Iterable[Callable[[], Undoable]]:
        if self.tiled:
            yield lambda: tile_mlp([model.get_submodule(name) for name in self.tiled], shard_size=self.shard_size)
        if self.fused_loss:
            yield lambda: fuse_loss(model)
        if self.checkpoints:
            yield lambda: wrap_blocks(model, self_check=self_check, **self.arguments()["wrap_blocks"])


class AppliedPlan(Undoable):
    """What a plan has changed on a model, until `undo`; `parts` are its changes, in the order of their making."""

    def __init__(self, parts: Sequence[Undoable]) -> None:
        self.parts = tuple(parts)

    def __str__(self) -> str:
        return "\n".join(map(str, self.parts))

    @property
    def surgery(self) -> Surgery | None:
        """The surgery of `wrap_blocks`; None where no block is checkpointed."""
        return next((part for part in self.parts if isinstance(part, Surgery)), None)

    def undo(self) -> None:
        """Take all of it back. Raises SurgeryError where a part was undone before."""
        for part in reversed(self.parts):
            part.undo()
        self._undone = True


def _written(modules: Sequence[str] = (), **named: Any) -> Iterator[str]:
    """Python for the arguments of a call on the model, or on some of its modules."""
    yield _listed(modules) if modules else "model"
    for name, value in named.items():
        yield f"{name}={json.dumps(value) if isinstance(value, str) else repr(value)}"


def _listed(names: Sequence[str]) -> str:
    """Python for a list of modules: by stack where it is the same module of each element, else by name."""
    groups: dict[tuple[str, str], list[int]] = {}
    for name in names:
        match = _PLACE.fullmatch(name)
        if match is None or re.search(r"\.\d+(\.|$)", f".{match[1]}.{match[3]}"):
            return f"[model.get_submodule(name) for name in {list(names)!r}]"
        groups.setdefault((match[1], match[3]), []).append(int(match[2]))
    lists = []
    for (stack, inside), numbers in groups.items():
        which = "" if numbers == list(range(len(numbers))) else f" for i in {tuple(numbers)!r}"
        lists.append(f"model.{stack}[i].{inside}{which}" if which else f"block.{inside} for block in model.{stack}")
    return " + ".join(f"[{each}]" for each in lists)
