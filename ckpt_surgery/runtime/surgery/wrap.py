"""`wrap_blocks`: gradient checkpointing that works, on one live model.

1. Only this instance is changed, nothing global; `undo` takes everything back.
2. Module tree, state dict, classes and hooks stay; a block's `forward` becomes an attribute of the block.
3. Gradients are those of a run without checkpointing, or the call is refused.

The model is checked here, and `Surgery.apply` changes it; docs/architecture.md lists the calls on the way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.runtime.blocks.discovery import compiled_place, find_blocks
from ckpt_surgery.runtime.blocks.selection import select_stacks
from ckpt_surgery.runtime.checkpoint.block_forward import BlockForward
from ckpt_surgery.runtime.self_check.schedule import SelfCheckOption
from ckpt_surgery.runtime.surgery.options import SurgeryOptions
from ckpt_surgery.runtime.surgery.surgery import Surgery, surgeries_in
from ckpt_surgery.torch_names import is_compiled


def wrap_blocks(
    model: nn.Module,
    *,
    use_reentrant: bool = False,
    every_n: int = 1,
    first: int | Mapping[str, int] | None = None,
    offload: str | os.PathLike[str] | None = None,
    offload_pinned: int | str | None = None,
    preserve_rng_state: bool | Literal["unsafe"] = True,
    stacks: str | Iterable[str] | None = None,
    skip_frozen: bool = True,
    blocks: str | type | Iterable[str | type] | None = None,
    context_fn: Callable[[], Any] | None = None,
    self_check: SelfCheckOption = "first",
    save: str | Iterable[str] | Mapping[str, str | Iterable[str]] | None = None,
    save_offload: bool = False,
) -> Surgery:
    """Make gradient checkpointing work on `model`, and switch it on for every block.

    A block is checkpointed while it is in training mode and gradients are on. It is also checkpointed in evaluation
    mode if its library does that, or if, in a model that is not one of transformers, its whole stack was in
    evaluation mode already, as a frozen base of adapters is. Checkpointing is always non-reentrant, so that every
    tensor with gradient that a block is given or returns keeps it, of whatever shape and wherever it sits. Of stages
    and the blocks in them, those that keep less are checkpointed. If a library checkpoints by itself something that no
    block covers, it keeps doing so.

    Args:
        model: a model of transformers, also inside PEFT, DistributedDataParallel or FSDP2, or any module that repeats
            others; parameters may have any dtype and be on any device but "meta". It is changed in place: its module
            tree, `state_dict` keys, classes and hooks stay as they are.
        use_reentrant: accepted and ignored: blocks run non-reentrant, with the same gradients. The table says so.
        every_n: checkpoint every n-th block of each stack, beginning with the first.
        first: checkpoint only this many blocks at the start of each stack, or of each stack that a pattern names
            (`{"model.layers": 20}`). The others keep their activations; the backward begins with them, and
            frees those before anything is recomputed.
        offload: where the blocks' inputs are kept until the backward: "cpu" is host memory; "disk" is files in the
            system's folder for large temporary files, and a path is files in that folder. No file is left behind.
            If the host or the disk has no room, they stay on the device, with a SurgeryWarning.
        offload_pinned: with "cpu", the most host memory to pin in this process: bytes, or a size such as "8GB"
            (10**9) or "8GiB" (2**30). Beyond it, pageable memory is used, with a SurgeryWarning. By default, half of
            what is free at the first use, divided by the processes that torchrun has started on the host.
        preserve_rng_state: as in `torch.utils.checkpoint.checkpoint`. False is refused if something in a block
            acts at random; "unsafe" is False without that check.
        stacks: patterns (`fnmatch`) of the names of stacks, of modules around stacks (`"model.vision*"`), or of single
            blocks (`"model.layers.[0-7]"`). Other blocks are left alone.
        skip_frozen: run a block without checkpointing in a call in which neither its parameters nor its inputs
            require gradient.
        blocks: classes of blocks, or their names. Blocks of other classes are left alone.
        context_fn: as in `torch.utils.checkpoint.checkpoint`: it returns the two contexts of a selective policy.
        self_check: when a recompute is compared with its forward, by sums over the tensors that decide the gradients.
            "first" is every block in the first three steps after each surgery or change of mode, and in the first call
            with each shape of inputs, and after that one block a step, in turn; "always" is every step, "never" none,
            and n every n-th step.
        save: operators whose results are kept, so that a recompute need not run them: "attention", "matmul", "router",
            "collectives", "norm", "conv", "random", and operators by their names ("aten.mm", "aten::mm.default").
            ":2" after a name keeps every second of them in a block, beginning with the first. A mapping says it for
            single stacks or blocks, or modules around them, by patterns of their names
            (`{"model.vision*": "attention", "model.layers.[0-7]": ["attention", "matmul"]}`): the first that matches
            a block decides, and a block that none matches keeps nothing.
        save_offload: whether what `save` keeps is offloaded too: to where `offload` says, and back, together with the
            blocks' inputs.

    A recompute starts from what its forward started from, and leaves that as the forward left it: the generators of
    torch, Python and numpy, buffers and frozen parameters that the block writes in place, attributes that it sets
    on its modules, hooks inside the block (of libraries, and those of the script that returned something), training
    flags, autocast and attention kernels. Caches that the model makes for itself are left out; a cache that the caller
    gives is filled once and read again. Nothing else is put back: what a block, or a hook on a module inside it,
    writes elsewhere (a counter in a global, a file) is written twice, as under any checkpointing. If that changes
    gradients, the self-check raises SurgeryError, as does a recompute that finds its weights or arguments modified.
    While torch compiles, blocks are checkpointed without offload and without self-check.

    Returns:
        The surgery: print it for a table, `undo()` it, or use it in a `with`. Switching checkpointing on or off on
        the model later, as trainers do, goes through it, with the options given there. A second call on the same
        model changes the options and returns the same surgery.

    Raises:
        SurgeryError: the model cannot be wrapped, or an option is not one of those above; the model is left alone.
            A call that cannot be checkpointed with the right gradients also raises it, in the forward or in the
            backward; so does a name in `save` that matches nothing, in the first backward after all blocks have run.
    """
    target = _checked(model)
    options = SurgeryOptions.of(
        use_reentrant=use_reentrant,
        every_n=every_n,
        first=first,
        offload=offload,
        offload_pinned=offload_pinned,
        preserve_rng_state=preserve_rng_state,
        stacks=stacks,
        skip_frozen=skip_frozen,
        blocks=blocks,
        context_fn=context_fn,
        self_check=self_check,
        save=save,
        save_offload=save_offload,
    )
    surgery = _existing_surgery(target) or Surgery(target)
    surgery.apply(options)
    return surgery


def can_wrap(model: nn.Module) -> bool:
    """Tell whether `wrap_blocks` finds something to checkpoint in a model."""
    try:
        return bool(select_stacks(_checked(model)))
    except SurgeryError:
        return False


def _checked(model: Any) -> nn.Module:
    """Return the model inside DistributedDataParallel if it can be wrapped. Raises SurgeryError."""
    if not isinstance(model, nn.Module):
        raise SurgeryError(f"the model is of type {type(model).__name__}: give a torch.nn.Module")
    name = type(model).__name__
    if isinstance(model, nn.DataParallel):
        raise SurgeryError(f"{name} runs copies of its model: give model.module to DistributedDataParallel instead")
    if any(map(is_compiled, model.modules())):
        blocks = [block.name for stack in select_stacks(model) for block in stack.blocks]
        if (place := compiled_place(model, blocks)) is not None:
            raise SurgeryError(
                f"{name} is compiled already{place}: call wrap_blocks first, and torch.compile after it"
            )
    if any(parameter.is_meta for parameter in model.parameters()):
        raise SurgeryError(f"{name} has parameters on the meta device: load or initialise them first, with to_empty")
    return model.module if isinstance(model, DistributedDataParallel) else model


def _existing_surgery(model: nn.Module) -> Surgery | None:
    """Return the surgery of a model, or of what it wraps. Raises SurgeryError if it has a part of one."""
    name = type(model).__name__
    surgeries = surgeries_in(model)
    if len(surgeries) > 1:
        raise SurgeryError(f"{name} holds models with surgeries of their own: undo those first")
    for surgery in surgeries:
        inside = set(surgery.model.modules())
        if any(block.module not in inside for block in find_blocks(model, unsupported=True)):
            raise SurgeryError(f"{name} holds a model with a surgery of its own: undo that first")
        return surgery
    forwards = [vars(module).get("forward") for module in model.modules()]
    if any(isinstance(forward, BlockForward) and not forward.retired for forward in forwards):
        raise SurgeryError(f"{name} is part of a model that has a surgery: call wrap_blocks on that model, or undo it")
    return None
