"""The table that a printed surgery shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_surgery.runtime.block import Checkpointing
from ckpt_surgery.runtime.discovery import Block, enclosing, is_layer
from ckpt_surgery.runtime.library_switch import checkpoints_itself
from ckpt_surgery.runtime.selection import StackPlan
from ckpt_surgery.text import text_table

if TYPE_CHECKING:
    from ckpt_surgery.runtime.surgery import Surgery


def surgery_table(surgery: Surgery) -> str:
    """What is checkpointed, and a line for each class of blocks in each stack, as plain text."""
    rows = []
    done = total = 0
    for stack in surgery.stacks:
        for kind in dict.fromkeys(type(block.module) for block in stack.blocks):
            blocks = [block for block in stack.blocks if type(block.module) is kind]
            chosen = [block for block in blocks if surgery.checkpoints(block)]
            done, total = done + len(chosen), total + len(blocks)
            how = _how(surgery, blocks[0]) if stack.wanted else ""
            why = _why(surgery, stack, blocks, len(chosen))
            rows.append((stack.name or "(the model)", kind.__name__, f"{len(chosen)} of {len(blocks)}", how, why))
    lines = text_table(("stack", "block", "checkpointed", "how", "left alone"), rows, right="checkpointed")
    return "\n".join([f"{type(surgery.model).__name__}: {done} of {total} blocks {_manner(surgery)}", *lines])


def _manner(surgery: Surgery) -> str:
    function = surgery.checkpointing
    if function is None:
        return "checkpointed (switched off)"
    if not isinstance(function, Checkpointing):
        return f"checkpointed by {getattr(function, '__qualname__', type(function).__name__)}"
    manner = "reentrant" if function.use_reentrant else "non-reentrant"
    return f"checkpointed, {manner}" + (", inputs kept on the host" if function.offloader else "")


def _how(surgery: Surgery, block: Block) -> str:
    """What was done to blocks like this one."""
    done = ["calls repaired" if block.kind == "layer" else "plain module made to checkpoint"]
    modules = dict(surgery.model.named_modules())
    if any(not is_layer(modules[o]) and checkpoints_itself(modules[o]) for o in (*enclosing(block.name), "")):
        done.append("inline branch off")
    nested = sum(is_layer(module) for module in block.module.modules()) - is_layer(block.module)
    if nested:
        done.append(f"{nested} nested off")
    return ", ".join(done)


def _why(surgery: Surgery, stack: StackPlan, blocks: list[Block], chosen: int) -> str:
    if not stack.wanted:
        return stack.why
    if surgery.checkpointing is None:
        return "switched off"
    reasons = []
    if chosen < len(blocks):
        reasons.append("left out by every_n" if chosen else "switched off")
    if surgery.skip_frozen and not any(p.requires_grad for block in blocks for p in block.module.parameters()):
        reasons.append("frozen: while its inputs need no gradient")
    return ", ".join(reasons)
