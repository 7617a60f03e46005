"""`tile_mlp`: MLPs that run over one shard of the sequence after another, so that their activations never exist whole.

This decides which modules can be tiled, replaces their forwards, and undoes that. `tiled_call` runs a call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.long_sequences.tiled_call import SEQUENCE, Tiles
from ckpt_surgery.long_sequences.token_probe import CannotTile, probe_tokens
from ckpt_surgery.runtime.checkpoint.block_forward import BlockForward
from ckpt_surgery.runtime.tools.classes import is_sharded
from ckpt_surgery.runtime.tools.untiled import runs_untiled
from ckpt_surgery.torch_names import ConvNd, NormBase, is_compiled
from ckpt_surgery.undo import Undoable

_MIXES_TOKENS = (NormBase, nn.GroupNorm, nn.RNNBase, nn.MultiheadAttention)


def tile_mlp(
    module: nn.Module | Iterable[nn.Module],
    *,
    num_shards: int | None = None,
    shard_size: int | None = None,
    fp32_accumulate: bool = False,
) -> Tiling:
    """Run an MLP, or each of several, over shards of its sequence, and recompute each shard in the backward.

    A module must map one tensor of shape (..., tokens, hidden) and any floating dtype to one with the same leading
    shape, and treat each token by itself. Results and gradients are those of the untiled module up to rounding:
    gradients of parameters are sums over shards. Tensors of shape (..., tokens, intermediate) never exist whole. The
    backward runs the forward again, except for its last product. Dropout draws for one shard after another: the masks
    differ from those of the untiled module, and are the same in the recompute. While gradients are off, nothing is
    kept or recomputed.

    Args:
        module: one MLP or several; each is changed in place, and its parameters stay where they are.
        num_shards: into how many shards of (almost) equal size a sequence is cut, at most one for each token.
        shard_size: the most tokens that a shard has of each sequence of the batch. Give this or `num_shards`.
        fp32_accumulate: add up the shards' gradients of bfloat16 and float16 parameters in float32. Takes 4 bytes for
            each element of them during the backward of a call, and is off while torch compiles.

    Plain autograd joins the shards, so every parameter gets one gradient. DistributedDataParallel in all its modes,
    FSDP2 around a module or what holds it, hooks, adapters on frozen layers, `torch.autograd.grad` and checkpointing
    of whole blocks work as they do without tiling. torch.compile tiles too.

    Before the first call in a training mode, dtype and number of dimensions, the module runs on four tokens together,
    in another order, and on each alone, without gradients or hooks and with the mean of every random draw. If
    results differ beyond rounding, the call is refused: the module mixes tokens, or carries state between them.
    Buffers, attributes and generators are as before.

    Not noticed by it: tokens mixed only four or more places apart, or only in longer sequences (the capacity of a
    router); weights at which mixing changes nothing, such as zeros; state deeper than a container in an attribute; a
    first call that torch.compile traces: call the module once before. Hooks of the modules inside run once for each
    shard, and again in the recompute: a router whose logits are collected by hooks (`output_router_logits` of
    transformers 5) must not be tiled.

    Returns:
        The tiling: print it, `undo()` it, or use it in a `with`.

    Raises:
        SurgeryError: a module cannot be tiled, or an option is not one of those above; nothing is changed. A call
            with anything but one tensor, with another kind of result, or of a module that mixes tokens, raises it
            too, and so does the backward where parameters, buffers or the training mode have changed since the
            forward.
    """
    modules = _checked(module)
    if (num_shards is None) == (shard_size is None):
        raise SurgeryError(
            f"num_shards is {num_shards!r} and shard_size is {shard_size!r}: give one of the two, and not the other"
        )
    for name, value in (("num_shards", num_shards), ("shard_size", shard_size)):
        if value is not None and (type(value) is not int or value < 1):
            raise SurgeryError(f"{name} is {value!r}: give a whole number of 1 or more")
    if type(fp32_accumulate) is not bool:
        raise SurgeryError(f"fp32_accumulate is {fp32_accumulate!r}: give True or False")
    return Tiling([TiledForward(mlp, num_shards, shard_size, fp32_accumulate) for mlp in modules])


class Tiling(Undoable):
    """Tiled modules, until `undo`. Made by `tile_mlp`; also a context manager. Printing it says what is tiled."""

    def __init__(self, forwards: Sequence[TiledForward]) -> None:
        self._forwards = tuple(forwards)
        for forward in self._forwards:
            vars(forward.module)["forward"] = forward

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        """The tiled modules, each once."""
        return tuple(forward.module for forward in self._forwards)

    def __str__(self) -> str:
        counts = Counter(type(module).__name__ for module in self.modules)
        kinds = ", ".join(f"{count} x {name}" for name, count in counts.items())
        first = self._forwards[0]
        shards = f"{first.num_shards} shards" if first.num_shards else f"shards of {first.shard_size} tokens"
        return f"{kinds} in {shards}{', undone' if self._undone else ''}"

    def tolerate(self) -> None:
        """Run modules untiled from now on if they cannot be tiled, rather than refuse their calls."""
        for forward in self._forwards:
            forward.tolerates = True

    @property
    def reasons(self) -> dict[nn.Module, str]:
        """Why modules could not be tiled, by module."""
        return {forward.module: forward.reason for forward in self._forwards if forward.reason is not None}

    def undo(self) -> None:
        """Give each module back the forward that it had before `tile_mlp`.

        A forward that another library has put on a module since stays, and runs the module untiled. Raises
        SurgeryError if the tiling was undone before.
        """
        if self._undone:
            raise SurgeryError("the tiling was undone before: call tile_mlp again for another one")
        for forward in self._forwards:
            forward.retire()
        self._undone = True


class TiledForward:
    """The `forward` of one tiled module, set on the module: the original, run on shards.

    `original` is the forward that was on the instance before; None stands for that of the class. If it `tolerates` a
    module that cannot be tiled, it runs that untiled, and `reason` says why.
    """

    def __init__(self, module: nn.Module, num_shards: int | None, shard_size: int | None, wide: bool) -> None:
        self.module = module
        self.num_shards = num_shards
        self.shard_size = shard_size
        self.wide = wide
        self.original: Callable[..., Any] | None = vars(module).get("forward")
        self.tolerates = False
        self.reason: str | None = None
        self.retired = False
        self._probed: set[tuple[bool, torch.dtype, int]] = set()

    @classmethod
    def runs(cls, module: nn.Module) -> bool:
        """Tell whether a module is tiled, also if others have replaced its forward since."""
        forward = vars(module).get("forward")
        while forward is not None:
            if isinstance(forward, cls) and not forward.retired:
                return True
            forward = getattr(forward, "original", None)
        return False

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The function that runs the module untiled; never a checkpointed one: shards are recomputed anyway."""
        if self.original is None:
            return partial(type(self.module).forward, self.module)
        return self.original.__wrapped__ if isinstance(self.original, BlockForward) else self.original

    @property
    def __self__(self) -> nn.Module:
        return self.module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module on shards of the one tensor that it is given. Raises SurgeryError if it is given more."""
        if self.retired and vars(self.module).get("forward") is not self:
            return (self.original or self.__wrapped__)(*args, **kwargs)
        forward = self.__wrapped__
        if runs_untiled() or self.reason is not None:
            return forward(*args, **kwargs)
        try:
            return self._tiled(forward, args, kwargs)
        except CannotTile as error:
            if not self.tolerates:
                raise
            self.reason = error.why
        return forward(*args, **kwargs)

    def _tiled(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        place, given = type(self.module).__name__, (*args, *kwargs.values())
        if len(given) != 1 or not isinstance(given[0], Tensor) or given[0].dim() < 2:
            kinds = (f"{t.dim()}-D tensor" if isinstance(t, Tensor) else type(t).__name__ for t in given)
            why = f"it was called with ({', '.join(kinds)}), and not with one tensor (..., tokens, hidden) alone"
            raise CannotTile(place, why)
        if any(is_sharded(part) for part in self.module.modules() if part is not self.module):
            raise SurgeryError(
                f"{place} cannot be tiled: FSDP2 shards a module inside it, which would gather its parameters for "
                "each shard; give fully_shard the tiled module or what holds it"
            )
        (values,) = given
        name = next(iter(kwargs), None)
        run = forward if name is None else lambda values: forward(**{name: values})
        kind = (self.module.training, values.dtype, values.dim())
        if not torch.compiler.is_compiling() and kind not in self._probed:
            probe_tokens(place, self.module, run, values)
            self._probed.add(kind)
        tokens = values.shape[SEQUENCE]
        count = self.num_shards or -(-tokens // (self.shard_size or 1))
        return Tiles(place, self.module, run, max(1, min(count, tokens)), self.wide).run(values)

    def retire(self) -> None:
        """Leave the module, and only run the original from now on: a forward around this may still call it."""
        self.retired = True
        attributes = vars(self.module)
        if attributes.get("forward") is not self:
            return
        original = self.original
        while isinstance(original, (BlockForward, TiledForward)) and original.retired:
            original = original.original
        del attributes["forward"]
        if original is not None:
            attributes["forward"] = original


def _checked(given: Any) -> list[nn.Module]:
    """Return the modules, each once, if all can be tiled. Raises SurgeryError."""
    modules = list(given) if isinstance(given, Iterable) and not isinstance(given, nn.Module) else [given]
    if not modules:
        raise SurgeryError("there is no module to tile: give one, or several")
    for module in modules:
        if not isinstance(module, nn.Module):
            raise SurgeryError(f"the module is of type {type(module).__name__}: give a torch.nn.Module, or several")
    unique = dict.fromkeys(modules)
    for outer in unique:
        _check(outer)
        if any(part in unique for part in outer.modules() if part is not outer):
            raise SurgeryError(f"{type(outer).__name__} holds another module to be tiled: give only one of the two")
    return list(unique)


def _check(module: nn.Module) -> None:
    name = type(module).__name__
    if isinstance(module, (nn.DataParallel, DistributedDataParallel)):
        raise SurgeryError(f"{name} holds a model for data parallelism: give the MLPs in it")
    if type(module).forward is nn.Module.forward and "forward" not in vars(module):
        raise SurgeryError(f"{name} has no forward: give its members, as a list")
    if any(parameter.is_meta for parameter in module.parameters()):
        raise SurgeryError(f"{name} has parameters on the meta device: load or initialise them first, with to_empty")
    for path, part in module.named_modules():
        where = f"{path} of {name}" if path else name
        if is_compiled(part):
            raise SurgeryError(f"{where} is compiled already: call tile_mlp first, and torch.compile after it")
        if TiledForward.runs(part):
            raise SurgeryError(f"{where} is tiled already: undo that tiling first")
        if isinstance(part, _MIXES_TOKENS) or (isinstance(part, ConvNd) and set(part.kernel_size) != {1}):
            raise SurgeryError(
                f"{where} is a {type(part).__name__}, which mixes tokens or writes buffers: {name} cannot run on "
                "shards of its sequence; take it out of tile_mlp"
            )
