"""`long_context`: all that makes a training step fit on long sequences, on one live model, by one call.

1. One instance is changed, nothing global; `undo` takes everything back.
2. Loss and gradients are those of the model's own code, or the model's own code runs.
3. What is not tiled or not fused is named, with the reason.
"""

from __future__ import annotations

from collections import Counter

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ckpt_surgery.distributed.fused_head import FusedLoss, LossState
from ckpt_surgery.distributed.heads import Head
from ckpt_surgery.distributed.mlps import Mlp, mlps_of
from ckpt_surgery.distributed.tiled import Tiling, tile_mlp
from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.runtime.surgery.options import SurgeryOptions
from ckpt_surgery.runtime.surgery.surgery import Surgery, surgeries_in
from ckpt_surgery.runtime.surgery.wrap import wrap_blocks
from ckpt_surgery.text import ShownInNotebooks
from ckpt_surgery.undo import Undoable

LONG_CONTEXT = "_ckpt_surgery_long_context"
"""The attribute of a model that holds what `long_context` did to it."""


def long_context(model: nn.Module, tokens: int | None = None) -> LongContext:
    """Let a model train on long sequences: blocks checkpointed with offload, MLPs tiled, the loss fused.

    `model` is a model of transformers with a language modelling head, also inside PEFT or DistributedDataParallel.

    - Every block is checkpointed, and its inputs wait in host memory: `wrap_blocks(model, offload="cpu")`.
    - The MLPs in the blocks run over shards of their sequence. A shard has as many tokens as the model is wide, so
      that what is between the products of an MLP is no larger than one of its weights.
    - The loss is computed without logits, as with `fuse_loss` of `ckpt_surgery.distributed`: inside the model's own
      forward, in training mode, with gradients and `labels`; `outputs.logits` costs memory when it is used, and not
      before.

    Args:
        model: changed in place; its module tree, `state_dict` keys, classes and hooks stay as they are.
        tokens: how many tokens a batch has, all its sequences together. The MLPs then run in as many shards as that
            needs, whatever a batch has. By default each call is cut by the length of its own sequences.

    Returns:
        What was done: print it, `undo()` it, or use it in a `with`. A second call does it anew, with other `tokens`,
        and returns the same.

    Raises:
        SurgeryError: the model cannot be wrapped, or `tokens` is no whole number of at least 1; the model is left as
            it was.
    """
    given: object = tokens
    if given is not None and (type(given) is not int or given < 1):
        raise SurgeryError(f"tokens is {tokens!r}: give how many tokens a batch has, or None")
    whole: object = model
    if not isinstance(whole, nn.Module):
        raise SurgeryError(f"the model is of type {type(model).__name__}: give a torch.nn.Module")
    target = model.module if isinstance(model, DistributedDataParallel) else model
    before = vars(target).get(LONG_CONTEXT)
    context = before if isinstance(before, LongContext) else LongContext(target)
    context.apply(tokens)
    return context


class LongContext(Undoable, ShownInNotebooks):
    """What `long_context` did to one model, until `undo`; also a context manager. Printing it says what was done.

    `surgery` is that of `wrap_blocks`, `loss` that of `fuse_loss`, and `mlps` are those found, with the reasons of
    those left alone.
    """

    surgery: Surgery
    loss: FusedLoss

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.mlps: tuple[Mlp, ...] = ()
        self._options: SurgeryOptions | None = None
        self._changes: list[Tiling | FusedLoss] = []
        self._losses = LossState(type(model).__name__)

    def __str__(self) -> str:
        lines = [str(self.surgery)]
        tiled = Counter((type(mlp.module).__name__, mlp.reason) for mlp in self.mlps)
        for (name, mlp_reason), count in tiled.items():
            lines.append(f"{count} x {name}: " + ("tiled" if mlp_reason is None else f"not tiled: {mlp_reason}"))
        lines.append(str(self.loss))
        return "\n".join(lines)

    @property
    def heads(self) -> tuple[Head, ...]:
        """The heads found, with the reasons of those left alone."""
        return self.loss.heads

    @property
    def fused_losses(self) -> int:
        """How many losses were computed without logits so far."""
        return self.loss.fused_losses

    @property
    def made_logits(self) -> dict[str, int]:
        """For which functions logits were made before a loss, and how often."""
        return self.loss.made_logits

    def apply(self, tokens: int | None) -> None:
        """Do it, in place of what was done before. Where that raises SurgeryError, all of it is taken back first."""
        if vars(self.model).get(LONG_CONTEXT) is not self or self.surgery.undone:
            self._options = next((surgery.options for surgery in surgeries_in(self.model)), None)
            self.surgery = wrap_blocks(self.model, offload="cpu")
        self._release()
        try:
            blocks = [block.module for stack in self.surgery.stacks for block in stack.blocks]
            self.mlps = tuple(mlps_of(self.model, blocks))
            for width in sorted({mlp.width for mlp in self.mlps if mlp.reason is None}):
                same = [mlp.module for mlp in self.mlps if mlp.reason is None and mlp.width == width]
                if tokens is None:
                    self._changes.append(tile_mlp(same, shard_size=width))
                else:
                    self._changes.append(tile_mlp(same, num_shards=-(-tokens // width)))
            self.loss = FusedLoss(self.model, self._losses)
            self._changes.append(self.loss)
        except BaseException:
            self.undo()
            raise
        vars(self.model)[LONG_CONTEXT] = self

    def begin_within(self) -> None:
        """Let the forward of the model count that is running already: to be called in it, before a block runs.

        Nobody knows whether that one has labels. Where it has none, its logits are made when they are used.
        """
        self.loss.begin_within(self.model)

    def undo(self) -> None:
        """Hand the model back as it was before `long_context`; a surgery that it had before keeps its options.

        Raises SurgeryError where that was done already.
        """
        if self._undone:
            name = type(self.model).__name__
            raise SurgeryError(f"long_context on {name} was undone before: call it again")
        self._release()
        if self._options is not None:
            self.surgery.apply(self._options)
        elif not self.surgery.undone:  # as wrap_blocks returns the same, it may have been taken back by itself
            self.surgery.undo()
        vars(self.model).pop(LONG_CONTEXT, None)
        self._undone = True

    def _release(self) -> None:
        for change in self._changes:
            if not change.undone:  # `fuse_loss` hands out the fused loss
                change.undo()
        self._changes = []
