"""Compare the state that a block finds on entry in its forward with the one that its recompute finds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
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
Look = tuple[type, Any] | None
"""The type of a value, and its shape, length or value; None for types that are not compared."""


class EntryLooks(StepWatch):
    """Records what `blocks` of `model` find on entry and exit; call `recompute` as the recompute of a block begins.

    `changes` says what each block found different as its first recompute began, first the buffers written since the
    forward. Of several calls it is not known which is recomputed: what differs from all of them is reported, compared
    with the last. `kept` names the attributes that hold tensors with a graph of an earlier step as this one begins.
    `cut_off` are blocks whose reentrant checkpoint is given nothing that needs gradient.
    """

    def __init__(self, model: nn.Module, blocks: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.kept = tuple(
            f"{path}.{name}" if path else name
            for path, module in model.named_modules()
            for name, value in {**vars(module), **module._buffers}.items()
            if name not in UNWATCHED and any(not (is_managed(held) or held.is_leaf) for held in tensors(value))
        )
        self.changes: dict[str, list[str]] = {}
        self.cut_off: list[str] = []
        self._names = {block: name for name, block in blocks.items()}
        self._looks: defaultdict[nn.Module, list[dict[str, Look]]] = defaultdict(list)
        self._arguments: dict[nn.Module, dict[str, Any]] = {}
        self._at_exit: dict[nn.Module, dict[str, int]] = {}  # the versions of buffers
        self._signatures = {b: BlockSignature.of(n, b, b.forward, fills_cache=False) for n, b in blocks.items()}
        for block in blocks.values():
            self._handles.append(block.register_forward_pre_hook(ModelHook(self._enter), with_kwargs=True))
            self._handles.append(block.register_forward_hook(ModelHook(self._leave), prepend=True))

    def recompute(self, block: nn.Module) -> None:
        """Look again at a block, and at its forward's arguments, as its recompute begins."""
        name, looks = self._names[block], self._looks[block]
        if looks and name not in self.changes:
            now = self._look(block)
            left, buffers = self._at_exit.get(block, {}), self._versions(block)
            written = [path for path in left if left[path] != buffers.get(path, left[path])]
            self.changes[name] = [f"{path} (written in between)" for path in written]
            for path in {**looks[-1], **now}:
                if all(look.get(path) != now.get(path) for look in looks):
                    then, again = (_in_words(look.get(path)) for look in (looks[-1], now))
                    self.changes[name].append(f"{path} ({then}, and then {again})")

    def undo(self) -> None:
        """Remove the hooks, and drop the arguments that were seen."""
        super().undo()
        self._arguments.clear()

    def _enter(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.phase is WatchedPhase.FORWARD:
            named = self._signatures[block].named(args, kwargs)
            self._arguments[block] = {n: v for n, v in named if isinstance(v, CONTAINERS) or is_cache(v)}
            self._looks[block].append(self._look(block))
            seen = any(given.requires_grad for given in seen_by_reentrant(block, args, kwargs))
            if not seen and runs_reentrant(block):
                self.cut_off.append(self._names[block])

    def _leave(self, block: nn.Module, *_: object) -> None:
        if self.phase is WatchedPhase.FORWARD:
            self._at_exit[block] = self._versions(block)

    @staticmethod
    def _versions(block: nn.Module) -> dict[str, int]:
        return {path: version(buffer) for path, buffer in block.named_buffers()}

    def _look(self, block: nn.Module) -> dict[str, Look]:
        """Look at the attributes and weights in a block, and at the containers and caches among its arguments."""
        cast_to = autocast_now()[1]
        looks = {"training": _look_at(block.training), AUTOCAST: _look_at(str(cast_to) if cast_to else None)}
        for path, module in block.named_modules():
            held = {**vars(module), **module._buffers, **module._parameters}
            if number := len(hooks_of_others(module)):
                looks[f"{HOOKS} {path or 'it'}"] = (list, number)
            for name, value in held.items():
                if name not in UNWATCHED and not (isinstance(value, Tensor) and is_managed(value)):
                    looks[f"{path}.{name}" if path else name] = _look_at(value)
        for name, value in self._arguments[block].items():
            look = _look_at(value)
            with suppress(Exception):  # caches of some kinds have no length
                look = (list, int(value.get_seq_length(self._signatures[block].layer)))
            looks[f"its argument {name}"] = look
        return looks


def _look_at(value: Any) -> Look:
    if isinstance(value, Tensor):
        return Tensor, (tuple(value.shape), isinstance(value, nn.Parameter) and value.requires_grad)
    if isinstance(value, CONTAINERS):
        return type(value), len(value)
    return (type(value), value) if type(value) in (bool, int, float, str, type(None)) else None


def _in_words(look: Look) -> str:
    if look is None:
        return "nothing"
    kind, seen = look
    if kind is Tensor and 0 in seen[0]:
        return "a tensor that was emptied, as ZeRO-3 and offloaders do"
    if kind is Tensor:
        return f"a tensor of shape {seen[0]}" + (" that requires gradient" if seen[1] else "")
    return plural(seen, "entry", "entries") if issubclass(kind, CONTAINERS) else repr(seen)
