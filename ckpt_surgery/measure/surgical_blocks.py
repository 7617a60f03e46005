"""Find the blocks of a model, with a surgery of `wrap_blocks` or without, and the policies of its option `save`."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from ckpt_surgery.runtime.blocks.discovery import Block, enclosing, find_blocks, is_layer
from ckpt_surgery.runtime.checkpoint.block_forward import BlockForward
from ckpt_surgery.runtime.selective.save_policy import SavePolicy
from ckpt_surgery.runtime.surgery.surgery import SURGERY, Surgery


def surgical_blocks(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the blocks that a surgery has wrapped, with their full names."""
    named = model.named_modules()
    return ((name, module) for name, module in named if isinstance(vars(module).get("forward"), BlockForward))


def has_surgery(model: nn.Module) -> bool:
    """Tell whether `wrap_blocks` checkpoints blocks of a model, or did until it was switched off."""
    return any(surgical_blocks(model))


def save_policies(model: nn.Module) -> list[SavePolicy]:
    """List the policies of the option `save` of `wrap_blocks` on the blocks of a model."""
    policies = (vars(block)["forward"].options.policy for _, block in surgical_blocks(model))
    return list({id(policy): policy for policy in policies if policy is not None}.values())


def blocks_of(model: nn.Module) -> dict[str, Block]:
    """Find the blocks of a model by name: those of its surgery if it has one, not the modules around them.

    Blocks that the options of the surgery leave out, by `every_n` or `stacks` for example, are not among them.
    """
    wrapped = dict(surgical_blocks(model))
    around = {outer for name in wrapped for outer in enclosing(name)}
    blocks = {block.name: block for block in find_blocks(model, unsupported=bool(wrapped)) if block.name not in around}
    for name, module in wrapped.items():
        blocks[name] = Block(name, module, "layer" if is_layer(module) else "plain", name.rpartition(".")[0])
    left_out: set[str] = set()  # by surgeries that are switched on
    for path, module in model.named_modules():
        surgery = vars(module).get(SURGERY)
        if isinstance(surgery, Surgery) and surgery.checkpointing is not None:
            in_stacks = (block for stack in surgery.stacks for block in stack.blocks)
            left_out |= {f"{path}.{b.name}" if path else b.name for b in in_stacks if not surgery.checkpoints(b)}
    return {name: blocks[name] for name, _ in model.named_modules() if name in blocks and name not in left_out}
