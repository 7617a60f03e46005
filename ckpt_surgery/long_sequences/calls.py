"""Make the calls of a plan on a model: `wrap_blocks`, `tile_mlp` and `fuse_loss`, given by name with arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import nn

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.long_sequences.fused_head import FusedLoss, fuse_loss
from ckpt_surgery.long_sequences.tiled import tile_mlp
from ckpt_surgery.runtime.blocks.library_switch import flags_of
from ckpt_surgery.runtime.surgery.surgery import Surgery
from ckpt_surgery.runtime.surgery.wrap import wrap_blocks
from ckpt_surgery.static.plan_file import FUNCTIONS, Calls
from ckpt_surgery.text import error_line
from ckpt_surgery.undo import Undoable


class AppliedPlan(Undoable):
    """What a plan has changed on a model, until `undo`; `parts` are the changes, in the order they were made."""

    def __init__(self, parts: Sequence[Undoable]) -> None:
        self.parts = tuple(parts)

    def __str__(self) -> str:
        return "\n".join(filter(None, map(str, self.parts)))

    @property
    def surgery(self) -> Surgery | None:
        """The surgery of `wrap_blocks`; None if no block is checkpointed."""
        return next((part for part in self.parts if isinstance(part, Surgery)), None)

    def begin_within(self, model: nn.Module) -> None:
        """Include the forward of `model` that is running already: call this in it, before a block runs."""
        for part in self.parts:
            if isinstance(part, FusedLoss):
                part.begin_within(model)

    def undo(self) -> None:
        """Undo all changes. Raises SurgeryError if a part was undone before."""
        for part in reversed(self.parts):
            part.undo()
        self._undone = True


class LibrarySwitchOff(Undoable):
    """The checkpointing that a model's own library has switched on, off until `undo`."""

    def __init__(self, model: nn.Module) -> None:
        self._on = [(module, flag) for module in model.modules() for flag in flags_of(module) if getattr(module, flag)]
        self._set(False)

    def __str__(self) -> str:
        return "the checkpointing that the script has switched on is off" if self._on else ""

    def undo(self) -> None:
        """Switch it on again."""
        self._set(True)
        self._undone = True

    def _set(self, value: bool) -> None:
        for module, flag in self._on:
            setattr(module, flag, value)


def apply_calls(model: nn.Module, calls: Calls, *, self_check: Literal["first", "never"] = "first") -> AppliedPlan:
    """Make the calls on a model. Raises SurgeryError as they do, after undoing those that were made before."""
    done: list[Undoable] = []
    try:
        for name in filter(calls.__contains__, FUNCTIONS):
            given = dict(calls[name])
            if name == "tile_mlp":
                modules = []
                for module in given.pop("modules"):
                    try:
                        modules.append(model.get_submodule(module))
                    except AttributeError:
                        kind = type(model).__name__
                        raise SurgeryError(f"{kind} has no module {module}: the plan is for another model") from None
                done.append(tile_mlp(modules, **given))
            elif name == "fuse_loss":
                done.append(fuse_loss(model, **given))
            else:
                done.append(wrap_blocks(model, **{"self_check": self_check, **given}))
    except BaseException as error:
        AppliedPlan(done).undo()
        if isinstance(error, TypeError):  # not an argument of that function
            raise SurgeryError(f"the plan cannot be applied: {error_line(error)}") from error
        raise
    return AppliedPlan(done)


def apply_plan(calls: Calls, model: nn.Module, *, running: bool = False) -> AppliedPlan:
    """Make the calls of a plan, and switch off what the script checkpoints by its library; raises as `apply_calls`.

    `running` says that a forward of the model has begun, but no block of it yet.
    """
    off = LibrarySwitchOff(model)
    try:
        applied = AppliedPlan([off, *apply_calls(model, calls).parts])
        if running:
            applied.begin_within(model)
    except BaseException:
        off.undo()
        raise
    return applied
