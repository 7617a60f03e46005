"""`long_context`: everything that makes a training step on long sequences fit, on one live model, in one call.

1. Only this instance is changed, nothing global; `undo` takes everything back.
2. Loss and gradients are those of the model's own code, or the model's own code runs.
3. What is not tiled or not fused is named, with the reason.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.long_sequences.cut_block import BlockCut
from ckpt_surgery.long_sequences.device_room import DeviceRoom
from ckpt_surgery.long_sequences.fused_head import FusedLoss, Head
from ckpt_surgery.long_sequences.logits_formula import LossState
from ckpt_surgery.long_sequences.mlps import Mlp, mlps_of
from ckpt_surgery.long_sequences.tiled import Tiling, tile_mlp
from ckpt_surgery.long_sequences.token_report import token_lines
from ckpt_surgery.runtime.surgery.options import SurgeryOptions, offload_target
from ckpt_surgery.runtime.surgery.surgery import Surgery, surgeries_in
from ckpt_surgery.runtime.surgery.wrap import wrap_blocks
from ckpt_surgery.text import ShownInNotebooks, size_in_bytes
from ckpt_surgery.undo import Undoable

_ROWS = 4096
"""The tokens in a shard of a norm, which is as wide as the model."""
LONG_CONTEXT = "_ckpt_surgery_long_context"
"""The attribute of a model that holds what `long_context` did to it."""


def long_context(
    model: nn.Module,
    tokens: int | None = None,
    *,
    cut: bool = True,
    host: bool | None = None,
    keep: int | str = 0,
    offload: str = "cpu",
) -> LongContext:
    """Let a model train on long sequences: blocks cut at their attention, inputs on the host, the loss fused.

    `model` is a model of transformers with a language modelling head, also inside PEFT or DistributedDataParallel.

    - A block whose tokens meet in one call of an attention function of transformers is cut there: the rest of it runs
      over one tile of the sequence after another, in the forward and in the backward, attention runs for some heads at
      a time, and the block's input alone is kept. That is tried on a few tokens in the first call of each block.
    - Every other block is checkpointed, and its MLP runs over shards of its sequence.
    - The inputs of blocks wait in host memory: `wrap_blocks(model, offload="cpu")`. Printing says how much of it a
      token takes, how much of the device, and how many tokens fit.
    - The loss is computed without logits, as with `fuse_loss` of `ckpt_surgery.distributed`: inside the model's own
      forward, in training mode, with gradients and `labels`; `outputs.logits` costs memory when it is used, and not
      before.

    A tile has as many tokens as the model is wide (for blocks that are cut, at least 1,024, all sequences of a batch
    together), so that what is between the products of an MLP is no larger than one of its weights. A batch that fits
    in one tile is not cut. Loss and gradients are those of the model's own code up to rounding; gradients of weights
    of half precision are added up over the tiles in float32. Dropout draws for one tile after another: the masks
    differ from those of the uncut block, and are the same in the backward. Hooks on a parameter and
    DistributedDataParallel see one gradient a call of a block. A backward with `create_graph=True` is refused.

    Args:
        model: changed in place; its module tree, `state_dict` keys, classes and hooks stay as they are.
        tokens: how many tokens a batch has, all its sequences together. Blocks and MLPs then run in as many tiles as
            that needs, for every batch. By default each call is cut by its own size.
        cut: False checkpoints every block.
        host: read the inputs of blocks that are cut from the host tile by tile, and let queries, keys and values wait
            there: that takes the least device memory and more copies. By default it is done for calls that would not
            fit otherwise into what is free on a CUDA device. True also cuts batches of one tile.
        keep: how much of the inputs of blocks that are cut may stay on the device: bytes, or a size such as "20GB".
            Then batches of one tile are cut too.
        offload: as in `wrap_blocks`: "cpu", "disk" or a folder. Tiles are read from host memory alone.

    Returns:
        What was done: print it, `undo()` it, or use it in a `with`. A second call applies its options instead, and
        returns the same object.

    Raises:
        SurgeryError: the model cannot be wrapped, `tokens` is not a whole number of at least 1, `keep` not a size or
            `offload` not a place, or `host` was given without host memory; the model is left as it was.
    """
    given: object = tokens
    if given is not None and (type(given) is not int or given < 1):
        raise SurgeryError(f"tokens is {tokens!r}: give how many tokens a batch has, or None")
    whole: object = model
    if not isinstance(whole, nn.Module):
        raise SurgeryError(f"the model is of type {type(model).__name__}: give a torch.nn.Module")
    target = model.module if isinstance(model, DistributedDataParallel) else model
    room = size_in_bytes(keep) if isinstance(keep, str) else keep
    if type(room) is not int or room < 0:
        raise SurgeryError(f'keep is {keep!r}: give bytes as an integer, or a size with its unit, such as "20GB"')
    if offload != "cpu":
        if host:
            raise SurgeryError(f"host=True reads tiles from host memory: leave offload={offload!r} out, or host")
        host = False
    before = vars(target).get(LONG_CONTEXT)
    context = before if isinstance(before, LongContext) else LongContext(target)
    context.apply(tokens, cut=cut, host=host, keep=room, offload=offload)
    return context


class LongContext(Undoable, ShownInNotebooks):
    """The changes of `long_context` to one model, until `undo`; also a context manager. Printing it describes them.

    `surgery` is that of `wrap_blocks`, `loss` that of `fuse_loss`, `mlps` are those found, with the reasons of those
    left alone, and `cuts` say for each block whether its calls are cut at its attention.
    """

    surgery: Surgery
    loss: FusedLoss

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.mlps: tuple[Mlp, ...] = ()
        self.cuts: dict[nn.Module, BlockCut] = {}
        self._options: SurgeryOptions | None = None
        self._changes: list[Tiling | FusedLoss] = []
        self._keep = 0
        self._losses = LossState(type(model).__name__)

    def __str__(self) -> str:
        lines = [str(self.surgery)]
        ways = Counter((type(block).__name__, each.way) for block, each in self.cuts.items())
        lines += [f"{count} x {name}: {way}" for (name, way), count in ways.items()]
        reasons = {
            part: why for change in self._changes if isinstance(change, Tiling) for part, why in change.reasons.items()
        }
        cut = {part for block, each in self.cuts.items() if each.calls for part in block.modules()}  # they run untiled
        mlps = [mlp for mlp in self.mlps if mlp.module not in cut]
        tiled = Counter((type(mlp.module).__name__, mlp.reason or reasons.get(mlp.module)) for mlp in mlps)
        for (name, mlp_reason), count in tiled.items():
            lines.append(f"{count} x {name}: " + ("tiled" if mlp_reason is None else f"not tiled: {mlp_reason}"))
        lines.append(str(self.loss))
        if self.cuts:
            lines += token_lines(self.model, self.cuts, self._keep, on_host=self.surgery.options.offload == "cpu")
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
        """The functions for which logits were made before a loss, and how often."""
        return self.loss.made_logits

    def apply(
        self, tokens: int | None, *, cut: bool = True, host: bool | None = None, keep: int = 0, offload: str = "cpu"
    ) -> None:
        """Make the changes, in place of earlier ones. If that raises SurgeryError, everything is undone first."""
        if vars(self.model).get(LONG_CONTEXT) is not self or self.surgery.undone:
            self._options = next((surgery.options for surgery in surgeries_in(self.model)), None)
            self.surgery = wrap_blocks(self.model, offload=offload)
        elif offload_target(offload) != self.surgery.options.offload:
            self.surgery.change(offload=offload_target(offload))
        self._release()
        try:
            self.cuts = {}
            if self.surgery.offloader is not None:
                self.surgery.offloader.in_flight = 1  # a second one of such a size costs more than it saves
            self._keep, room = keep, DeviceRoom(keep) if keep else None
            self.surgery.cut(partial(self._cut, tokens, host, room) if cut else None)
            blocks = [block.module for stack in self.surgery.stacks for block in stack.blocks]
            self.mlps = tuple(mlps_of(self.model, blocks))
            for width in sorted({mlp.width for mlp in self.mlps if mlp.reason is None}):
                same = [mlp.module for mlp in self.mlps if mlp.reason is None and mlp.width == width]
                if tokens is None:
                    self._changes.append(tile_mlp(same, shard_size=width))
                else:
                    self._changes.append(tile_mlp(same, num_shards=-(-tokens // width)))
            norms = [norm for stack in self.surgery.stacks for norm in _norms_behind(self.model, stack.name)]
            if norms:
                self._changes.append(tile_mlp(norms, shard_size=_ROWS))
            for change in self._changes:
                if isinstance(change, Tiling):
                    change.tolerate()
            self.loss = FusedLoss(self.model, self._losses)
            self._changes.append(self.loss)
        except BaseException:
            self.undo()
            raise
        vars(self.model)[LONG_CONTEXT] = self

    def _cut(self, tokens: int | None, parks: bool | None, room: DeviceRoom | None, block: nn.Module) -> BlockCut:
        self.cuts[block] = BlockCut(block, self.model, tokens, parks=parks, room=room)
        return self.cuts[block]

    def begin_within(self) -> None:
        """Include the forward of the model that is running already: call this in it, before a block runs.

        It counts as one with labels, which cannot be known. If it has none, its logits are made when they are used.
        """
        self.loss.begin_within(self.model)

    def undo(self) -> None:
        """Hand the model back as it was before `long_context`; a surgery that it had before keeps its options.

        Raises SurgeryError if that was done already.
        """
        if self._undone:
            name = type(self.model).__name__
            raise SurgeryError(f"long_context on {name} was undone before: call it again")
        self._release()
        self.surgery.cut(None)
        if self._options is not None:
            self.surgery.apply(self._options)
        elif not self.surgery.undone:  # `wrap_blocks` returns the same surgery, which may have been undone there
            self.surgery.undo()
        vars(self.model).pop(LONG_CONTEXT, None)
        self._undone = True

    def _release(self) -> None:
        for change in self._changes:
            if not change.undone:  # a user gets the fused loss from `fuse_loss`
                change.undo()
        self._changes = []


def _norms_behind(model: nn.Module, stack: str) -> list[nn.Module]:
    """Return the normalizations beside a stack, such as after its last block: they copy all tokens in float32."""
    owner = model.get_submodule(stack.rpartition(".")[0])
    return [
        part
        for part in owner.children()
        if type(part).__name__.endswith(("LayerNorm", "RMSNorm"))
        and [p.dim() for p in part.parameters()] in ([1], [1, 1])
    ]
