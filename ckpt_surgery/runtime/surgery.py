"""A surgery on one model: what was done to it, how it is switched on and off, and how it is taken back.

1. Only attributes of modules and hooks are set; no module, parameter or class is replaced.
2. Whatever is set was noted before, with what was there; undoing puts that back.
3. All that a copy of the model needs lies on the copy's own modules.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from ckpt_surgery.errors import SurgeryError, SurgeryWarning
from ckpt_surgery.runtime import library_switch as native
from ckpt_surgery.runtime.block import FUNCTION, BlockForward, Checkpointing, random_options
from ckpt_surgery.runtime.discovery import CONTAINERS, Block, enclosing
from ckpt_surgery.runtime.offload import Offloader, OffloadStats
from ckpt_surgery.runtime.rng import active_dropout
from ckpt_surgery.runtime.selection import StackPlan
from ckpt_surgery.runtime.stack_hooks import Guard, Switch
from ckpt_surgery.runtime.undo import Undoable

SURGERY = "_ckpt_surgery"
"""The attribute of a model that holds its surgery."""

OPTIONS = "_ckpt_surgery_options"
"""The attribute of a model that holds the options of its surgery, also while checkpointing is switched off."""

_CLAIM = "supports_gradient_checkpointing"
_EMBEDDINGS = ("_require_grads_hook", "_require_grads_hooks")
_OURS = (*native.INLINE_FLAGS, native.SWITCH, FUNCTION, "forward", _CLAIM, SURGERY, OPTIONS)


@dataclass(frozen=True, slots=True, eq=False)
class Noted:
    """An attribute of a module as it was; there was none where it is not `present`."""

    module: nn.Module
    name: str
    present: bool
    value: Any


class Surgery(Undoable):
    """Checkpointing that works on one model, until `undo`. Made by `wrap_blocks`; also a context manager.

    Printing it gives a table of the model's stacks.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.stacks: tuple[StackPlan, ...] = ()
        self.every_n = 1
        self.skip_frozen = True
        self._forwards: dict[str, BlockForward] = {}
        self._noted: list[Noted] = []
        self._guards: list[RemovableHandle] = []
        self._hooks = set(native.embedding_hooks(model))

    def __str__(self) -> str:
        from ckpt_surgery.runtime.table import surgery_table

        return surgery_table(self)

    @property
    def checkpointing(self) -> Callable[..., Any] | None:
        """The function that checkpoints the blocks; None while checkpointing is switched off."""
        return next((function for f in self._forwards.values() if (function := vars(f.block).get(FUNCTION))), None)

    @property
    def stats(self) -> OffloadStats | None:
        """What activation offload has moved so far; None without offload."""
        offloader = getattr(self.checkpointing, "offloader", None)
        return offloader.stats if isinstance(offloader, Offloader) else None

    def checkpoints(self, block: Block) -> bool:
        """Whether a block is checkpointed now."""
        return block.name in self._forwards and vars(block.module).get(FUNCTION) is not None

    def operate(
        self, stacks: Sequence[StackPlan], checkpointing: Checkpointing, *, every_n: int, skip_frozen: bool
    ) -> None:
        """Do it, or do it otherwise where it was done before."""
        self._take_down(_OURS)
        self.stacks = tuple(stacks)
        self.every_n = every_n
        self.skip_frozen = skip_frozen
        kept = {(noted.module, noted.name): noted for noted in self._noted if noted.name in _EMBEDDINGS}
        self._noted = [
            kept.get((module, name)) or Noted(module, name, name in vars(module), vars(module).get(name))
            for module in self.model.modules()
            for name in (*_OURS, *_EMBEDDINGS)
        ]
        wanted = [block for stack in self.stacks if stack.wanted for block in stack.blocks]
        for block in wanted:
            beneath = vars(block.module).get("forward")
            forward = BlockForward(block.name, block.module, skip_frozen=skip_frozen, beneath=beneath)
            self._forwards[block.name] = vars(block.module)["forward"] = forward
        inside = {block.module for block in wanted}
        vars(self.model).update({SURGERY: self, OPTIONS: checkpointing})
        for module in self.model.modules():
            if native.takes_switch(module):
                vars(module)[native.SWITCH] = Switch(self, module)
                claims = getattr(module, _CLAIM, True) or inside.isdisjoint(module.modules())
                if not claims and native.takes_embedding_hook(module):
                    vars(module)[_CLAIM] = True
        for owner, guard in self._guarded():
            self._guards.append(owner.register_forward_pre_hook(guard, prepend=True, with_kwargs=True))
        self._set(self.model, checkpointing, every_n)

    def enable(self, model: nn.Module, function: Callable[..., Any], every_n: int = 1) -> None:
        """Checkpoint the blocks inside `model`, a module of this one, with the options in a checkpoint function.

        What the function does not say stays as it is. A function that is not torch's is called itself. Raises
        SurgeryError where its options do not go with the model.
        """
        known = native.options_of(function)
        self._set(model, function if known is None else self._with(*known), every_n if every_n > 1 else self.every_n)

    def disable(self, model: nn.Module) -> None:
        """Let the blocks inside `model` run as they are."""
        self._set(model, None, 1)

    def undo(self) -> None:
        """Hand the model back as it was before `wrap_blocks`.

        What transformers has left since goes too: hooks on embeddings, flags. A forward that another library has put
        on a block since stays. Raises SurgeryError, and changes nothing, where that was done already, or a block is
        no longer where it was.
        """
        name = type(self.model).__name__
        if self._undone:
            raise SurgeryError(f"the surgery on {name} was undone before: call wrap_blocks again for another one")
        modules = dict(self.model.named_modules())
        for path, forward in self._forwards.items():
            if modules.get(path) is not forward.block:
                raise SurgeryError(
                    f"{forward.place} is no longer at its place in {name}: put it back before the surgery is undone"
                )
        self._take_down((*_OURS, *_EMBEDDINGS))
        for module, key in set(native.embedding_hooks(self.model)) - self._hooks:
            module._forward_hooks.pop(key)
        self._undone = True

    def _take_down(self, names: Iterable[str]) -> None:
        """Put these attributes back, and take the guards off."""
        for guard in self._guards:
            guard.remove()
        theirs = {f.block: current for f in self._forwards.values() if (current := self._put_over(f)) is not None}
        for noted in (noted for noted in self._noted if noted.name in names):
            attributes = vars(noted.module)
            if noted.present:
                attributes[noted.name] = noted.value
            else:
                attributes.pop(noted.name, None)
        for block, later in theirs.items():
            vars(block)["forward"] = later
        for forward in self._forwards.values():
            forward.retire()
        self._guards.clear()
        self._forwards.clear()

    def _put_over(self, forward: BlockForward) -> Callable[..., Any] | None:
        """A forward that another library put on the block after the surgery."""
        current = vars(forward.block).get("forward")
        return forward.over if current is forward else current

    def _with(self, options: dict[str, Any], offload: bool) -> Checkpointing:
        """The checkpointing of now, or that before it was switched off, with other options."""
        base: Checkpointing = vars(self.model)[OPTIONS]
        known: dict[str, Any] = {
            name: options[name] for name in ("use_reentrant", "preserve_rng_state", "context_fn") if name in options
        }
        more = {name: value for name, value in options.items() if name not in known}
        if "preserve_rng_state" in known:
            known |= random_options(known["preserve_rng_state"])
        if known.get("use_reentrant") and base.context_fn is not None:
            # transformers 4 asks for it by itself, so this need not be anybody's wish
            warnings.warn("context_fn needs use_reentrant=False: that is kept", SurgeryWarning, stacklevel=2)
            known["use_reentrant"] = False
        changed = replace(base, **known, more={**base.more, **more})
        if offload and changed.offloader is None:
            changed = replace(changed, offloader=Offloader())
        check_options(changed, [forward.block for forward in self._forwards.values()])
        vars(self.model)[OPTIONS] = changed
        return changed

    def _set(self, scope: nn.Module, function: Callable[..., Any] | None, every_n: int) -> None:
        """Give the blocks inside `scope` this function, every n-th of each stack, and let flags tell."""
        inside = set(scope.modules())
        for stack in self.stacks:
            for place, block in enumerate(stack.blocks):
                if stack.wanted and block.module in inside:
                    vars(block.module)[FUNCTION] = function if place % every_n == 0 else None
        self._let_flags_tell()

    def _let_flags_tell(self) -> None:
        active: set[str] = set()
        for path, forward in self._forwards.items():
            if vars(forward.block).get(FUNCTION) is not None:
                active |= {path, *enclosing(path), ""}
        stacks = {stack.name for stack in self.stacks if stack.wanted}
        for path, module in self.model.named_modules():
            value = path in active
            if path in stacks and not native.checkpoints_itself(module):
                vars(module)[native.FLAG] = value
            else:
                native.set_flags(module, value)

    def _guarded(self) -> Iterator[tuple[nn.Module, Guard]]:
        """The modules around the blocks, as their forwards run them, and the model: another module may run them."""
        modules = dict(self.model.named_modules())
        owned: dict[str, list[BlockForward]] = {}
        for path, forward in self._forwards.items():
            around = (outer for outer in (*enclosing(path), "") if not isinstance(modules[outer], CONTAINERS))
            owned.setdefault(next(around, ""), []).append(forward)
        yield self.model, Guard(self.model, list(self._forwards.values()), stops_cache="" in owned)
        for path, forwards in owned.items():
            if path:
                yield modules[path], Guard(modules[path], forwards, stops_cache=True)


def check_options(checkpointing: Checkpointing, blocks: Iterable[nn.Module]) -> None:
    """Raise SurgeryError where options contradict each other, or would give other gradients on these blocks."""
    if checkpointing.use_reentrant and checkpointing.context_fn is not None:
        raise SurgeryError("context_fn needs use_reentrant=False: torch knows no policies in reentrant checkpointing")
    if checkpointing.preserve_rng_state or checkpointing.random_free:
        return
    for block in blocks:
        if dropping := active_dropout(block):
            raise SurgeryError(
                f"preserve_rng_state=False while {dropping} of {type(block).__name__} acts at random: the recompute "
                'would draw other numbers; keep it True, set the rates to 0, or say preserve_rng_state="unsafe"'
            )
