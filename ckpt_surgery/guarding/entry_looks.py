"""Compare the state that a block finds on entry in its forward with the one that its recompute finds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ckpt_surgery.guarding.block_writes import CONTAINERS
from ckpt_surgery.guarding.steps import StepWatch, WatchedPhase
from ckpt_surgery.guarding.witnessed_call import autocast_now, runs_reentrant, seen_by_reentrant
from ckpt_surgery.measure.model_hook import ModelHook
from ckpt_surgery.runtime.checkpoint.call_arguments import BlockSignature, is_cache
from ckpt_surgery.runtime.checkpoint.state import UNWATCHED
from ckpt_surgery.runtime.tools.classes import hooks_of_others, is_managed
from ckpt_surgery.runtime.tools.containers import tensors
from ckpt_surgery.runtime.tools.tensors import version
from ckpt_surgery.text import plural

AUTOCAST = "the dtype of autocast"
HOOKS = "hooks on"


@dataclass(frozen=True, slots=True)
class Look:
    """A look at a value: its `kind`, and its size, shape or value. A `trained` weight requires gradient."""

    kind: type
    value: Any
    trained: bool = False

    @classmethod
    def at(cls, value: Any) -> Look | None:
        """Look at a value; return None for kinds of values that are not compared."""
        if isinstance(value, Tensor):
            return cls(Tensor, tuple(value.shape), isinstance(value, nn.Parameter) and value.requires_grad)
        if isinstance(value, CONTAINERS):
            return cls(type(value), len(value))
        return cls(type(value), value) if type(value) in (bool, int, float, str, type(None)) else None

    def __str__(self) -> str:
        if self.kind is Tensor and 0 in self.value:
            return "a tensor that was emptied, as ZeRO-3 and offloaders do"
        if self.kind is Tensor:
            return f"a tensor of shape {self.value}" + (" that requires gradient" if self.trained else "")
        return plural(self.value, "entry", "entries") if issubclass(self.kind, CONTAINERS) else repr(self.value)


@dataclass(frozen=True, slots=True)
class Change:
    """A difference between a block's recompute and its forward; None was not there."""

    name: str
    before: Look | None
    now: Look | None

    def __str__(self) -> str:
        before, now = ("nothing" if look is None else str(look) for look in (self.before, self.now))
        return f"{self.name} ({before}, and then {now})"


@dataclass(frozen=True, slots=True)
class Written:
    """A buffer that was written between the forward of its block and the recompute."""

    name: str

    def __str__(self) -> str:
        return f"{self.name} (written in between)"


class EntryLooks(StepWatch):
    """Looks at `blocks` of `model` on entry and exit, and calls `recompute` for each whose recompute begins.

    `changes` are those of each block as its first recompute begins: of several calls nothing says which that is, so
    that only what is as in none of them has changed, and is told by the last. First come buffers that somebody has
    written since the forward. `kept` names the attributes that hold tensors with a graph as the step begins: of an
    earlier one. `cut_off` are blocks of which reentrant checkpointing is given nothing that needs gradient.
    """

    def __init__(self, model: nn.Module, blocks: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.kept = tuple(
            f"{path}.{name}" if path else name
            for path, module in model.named_modules()
            for name, value in {**vars(module), **module._buffers}.items()
            if name not in UNWATCHED and any(not (is_managed(held) or held.is_leaf) for held in tensors(value))
        )
        self.changes: dict[str, list[Change | Written]] = {}
        self.cut_off: list[str] = []
        self._names = {block: name for name, block in blocks.items()}
        self._looks: defaultdict[nn.Module, list[dict[str, Look | None]]] = defaultdict(list)
        self._arguments: dict[nn.Module, dict[str, Any]] = {}
        self._left: dict[nn.Module, dict[str, int]] = {}
        self._signatures = {b: BlockSignature.of(n, b, b.forward, fills_cache=False) for n, b in blocks.items()}
        self._handles += [
            block.register_forward_pre_hook(ModelHook(self._enter), with_kwargs=True) for block in blocks.values()
        ]
        self._handles += [
            block.register_forward_hook(ModelHook(self._leave), prepend=True) for block in blocks.values()
        ]

    def recompute(self, block: nn.Module) -> None:
        """Look again at a block, and at its forward's arguments, as its recompute begins."""
        name, looks = self._names[block], self._looks[block]
        if looks and name not in self.changes:
            now = self._look(block)
            left, buffers = self._left.get(block, {}), _buffer_versions(block)
            self.changes[name] = [Written(path) for path in left if left[path] != buffers.get(path, left[path])]
            self.changes[name] += [
                Change(path, looks[-1].get(path), now.get(path))
                for path in {**looks[-1], **now}
                if all(look.get(path) != now.get(path) for look in looks)
            ]

    def undo(self) -> None:
        """Remove the hooks, and drop the arguments that were seen."""
        super().undo()
        self._arguments.clear()

    def _enter(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.phase is WatchedPhase.FORWARD:
            named = self._signatures[block].named(args, kwargs)
            self._arguments[block] = {n: v for n, v in named if isinstance(v, CONTAINERS) or is_cache(v)}
            self._looks[block].append(self._look(block))
            if not any(given.requires_grad for given in seen_by_reentrant(block, args, kwargs)) and (
                runs_reentrant(block)
            ):
                self.cut_off.append(self._names[block])

    def _leave(self, block: nn.Module, *_: object) -> None:
        if self.phase is WatchedPhase.FORWARD:
            self._left[block] = _buffer_versions(block)

    def _look(self, block: nn.Module) -> dict[str, Look | None]:
        """Look at the attributes and weights in a block, and at the containers and caches among its arguments."""
        cast_to = autocast_now()[1]
        looks = {"training": Look.at(block.training), AUTOCAST: Look.at(str(cast_to) if cast_to else None)}
        for path, module in block.named_modules():
            held = {**vars(module), **module._buffers, **module._parameters}
            if number := len(hooks_of_others(module)):
                looks[f"{HOOKS} {path or 'it'}"] = Look(list, number)
            for name, value in held.items():
                if name not in UNWATCHED and not (isinstance(value, Tensor) and is_managed(value)):
                    looks[f"{path}.{name}" if path else name] = Look.at(value)
        for name, value in self._arguments[block].items():
            look = Look.at(value)
            with suppress(Exception):  # caches of some kinds have no length
                look = Look(list, int(value.get_seq_length(self._signatures[block].layer)))
            looks[f"its argument {name}"] = look
        return looks


def _buffer_versions(block: nn.Module) -> dict[str, int]:
    """Return the number of writes to each buffer in a block."""
    return {path: version(buffer) for path, buffer in block.named_buffers()}
