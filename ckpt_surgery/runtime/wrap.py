"""`wrap_blocks`: gradient checkpointing that works, on one live model.

1. One instance is changed, nothing global; `undo` takes everything back.
2. Module tree, state dict, classes and hooks stay; a block's `forward` becomes an attribute of the block.
3. Gradients are those of a run without checkpointing in both modes, or the call is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.runtime.block import BlockForward, Checkpointing, random_options
from ckpt_surgery.runtime.discovery import find_blocks
from ckpt_surgery.runtime.offload import Offloader
from ckpt_surgery.runtime.selection import make_plan
from ckpt_surgery.runtime.surgery import SURGERY, Surgery, check_options


def wrap_blocks(
    model: nn.Module,
    *,
    use_reentrant: bool = False,
    every_n: int = 1,
    offload: Literal["cpu"] | None = None,
    preserve_rng_state: bool | Literal["unsafe"] = True,
    towers: str | Iterable[str] | None = None,
    skip_frozen: bool = True,
    blocks: str | type | Iterable[str | type] | None = None,
    context_fn: Callable[[], Any] | None = None,
) -> Surgery:
    """Make gradient checkpointing work on `model`, and switch it on for every block.

    `model` is a model of transformers, also inside PEFT, DistributedDataParallel or FSDP2, or any module with
    stacks of blocks. A block is checkpointed while it is in training mode and gradients are on. Every tensor with
    gradient that it is given is found wherever it sits in the arguments; caches are left out of the call; what it
    writes on itself (running statistics) is written once. In a stack only the outermost of nested blocks count.

    `use_reentrant` and `preserve_rng_state` are those of `torch.utils.checkpoint.checkpoint`, and `context_fn` hands
    on its selective policies. Under DistributedDataParallel reentrant checkpointing is replaced by the other.
    `preserve_rng_state="unsafe"` is False although something drops at random. `every_n` checkpoints every n-th block
    of each stack. `offload="cpu"` keeps the blocks' inputs in host memory until the backward. `towers` are patterns
    of stack names, or of modules around stacks (`"model.vision*"`), and `blocks` classes or their names: everything
    else is left alone. `skip_frozen` leaves a block alone in a call in which neither its parameters nor its inputs
    need gradient.

    What it cannot see, as torch's own checkpointing cannot: parameters, or attributes of blocks, that somebody changes
    between a forward and its backward; and state that a block writes for the first time after its first call, unless
    it is a buffer of up to 4,096 elements. On transformers 4, switching it on without options means
    `use_reentrant=True`. While torch compiles, caches are left out and torch checkpoints, non-reentrant and without
    offload.

    Returns the surgery: print it for a table, `undo()` it, or use it in a `with`. Switching checkpointing on or off
    on the model later, as trainers do, goes through it with the options given there. On a model that has a surgery
    the options are changed and the same one is returned.

    Raises SurgeryError, with one sentence, and leaves the model alone, where that is impossible. A call that cannot be
    checkpointed with the right gradients raises it in the forward or in the backward.
    """
    target = _checked(model)
    checkpointing = _checked_options(use_reentrant, preserve_rng_state, context_fn, offload)
    if type(skip_frozen) is not bool:
        raise SurgeryError(f"skip_frozen is {skip_frozen!r}: give True or False")
    if type(every_n) is not int or every_n < 1:
        raise SurgeryError(f"every_n is {every_n!r}: give 1 for every block, 2 for every second one, and so on")
    known = _surgery_on(target)
    surgery = Surgery(target) if known is None else known
    stacks = make_plan(surgery.model, towers, blocks)
    check_options(checkpointing, [block.module for stack in stacks if stack.wanted for block in stack.blocks])
    surgery.operate(stacks, checkpointing, every_n=every_n, skip_frozen=skip_frozen)
    return surgery


def _checked(model: Any) -> nn.Module:
    """The model inside wrappers for data parallelism, if it can be operated on. Raises SurgeryError."""
    if not isinstance(model, nn.Module):
        raise SurgeryError(f"the model is a {type(model).__name__}: give a torch.nn.Module")
    name = type(model).__name__
    if isinstance(model, nn.DataParallel):
        raise SurgeryError(f"{name} runs copies of its model: give model.module to DistributedDataParallel instead")
    for module in model.modules():
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            raise SurgeryError(f"{name} is compiled already: call wrap_blocks first, and torch.compile after it")
    if any(parameter.is_meta for parameter in model.parameters()):
        raise SurgeryError(f"{name} has parameters on the meta device: load or initialise them first, with to_empty")
    return model.module if isinstance(model, DistributedDataParallel) else model


def _checked_options(
    use_reentrant: bool, preserve_rng_state: bool | str, context_fn: Callable[[], Any] | None, offload: str | None
) -> Checkpointing:
    if offload not in (None, "cpu"):
        raise SurgeryError(f'offload is {offload!r}: give "cpu", or None to keep everything where it is')
    if type(use_reentrant) is not bool:
        raise SurgeryError(f"use_reentrant is {use_reentrant!r}: give True or False")
    if type(preserve_rng_state) not in (bool, str) or preserve_rng_state not in (True, False, "unsafe"):
        raise SurgeryError(f'preserve_rng_state is {preserve_rng_state!r}: give True, False or "unsafe"')
    if context_fn is not None and not callable(context_fn):
        raise SurgeryError(f"context_fn is a {type(context_fn).__name__}: give a function that returns two contexts")
    return Checkpointing(
        use_reentrant=use_reentrant,
        **random_options(preserve_rng_state),
        context_fn=context_fn,
        offloader=None if offload is None else Offloader(),
    )


def _surgery_on(model: nn.Module) -> Surgery | None:
    """The surgery that a model, or what it wraps, has. Raises SurgeryError where it has a part of one."""
    found = {id(s): s for module in model.modules() if isinstance(s := vars(module).get(SURGERY), Surgery)}
    if len(found) > 1:
        raise SurgeryError(f"{type(model).__name__} holds models with surgeries of their own: undo those first")
    if found:
        surgery = next(iter(found.values()))
        inside = set(surgery.model.modules())
        if any(block.module not in inside for block in find_blocks(model, unsupported=True)):
            raise SurgeryError(f"{type(model).__name__} holds a model with a surgery of its own: undo that first")
        return surgery
    forwards = [vars(module).get("forward") for module in model.modules()]
    if any(isinstance(forward, BlockForward) and not forward.retired for forward in forwards):
        raise SurgeryError(f"{type(model).__name__} is part of a model that has a surgery: call wrap_blocks on that")
    return None
