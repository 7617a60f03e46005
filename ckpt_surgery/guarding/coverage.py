"""Whether each block was recomputed exactly once in a step, and why not, where the block shows it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from ckpt_surgery.guarding.faults import CoverageCause, GuardFault, GuardFaultKind
from ckpt_surgery.measure.block_entries import EntryCounter
from ckpt_surgery.runtime.blocks.discovery import is_layer
from ckpt_surgery.runtime.blocks.library_switch import FLAG, FUNCTION, checkpoints_itself, flags_of
from ckpt_surgery.runtime.checkpoint.block_forward import BlockForward


class Coverage:
    """Counts the entries of `blocks` in one step of `model`."""

    def __init__(self, model: nn.Module, blocks: Mapping[str, nn.Module]) -> None:
        self._model = model
        self._blocks = blocks
        self._expected = {name for name, block in blocks.items() if _is_on(model, name, block)}
        self._evaluating = {name for name, block in blocks.items() if not block.training}
        self._counter = EntryCounter(model, blocks)
        self._counter.__enter__()
        self._removed = False

    def start_backward(self) -> None:
        """Count entries as recomputes from now on."""
        self._counter.start_backward()

    def set_aside(self, aside: bool) -> None:
        """While it is set, a forward runs that is no part of the step."""
        self._counter.set_aside(aside)

    def remove(self) -> None:
        """Take the hooks off."""
        if not self._removed:
            self._removed = True
            self._counter.__exit__(None, None, None)

    def counts(self) -> dict[str, tuple[int, int]]:
        """The entries of each block in forward and backward."""
        return {name: (entries.forward, entries.backward) for name, entries in self._counter.entries().items()}

    def faults(self) -> list[GuardFault]:
        """The faults of the step, those of one kind and cause together."""
        found: dict[tuple[GuardFaultKind, CoverageCause, tuple[int, int]], list[str]] = {}
        for name, (forward, backward) in self.counts().items():
            block = self._blocks[name]
            trains = any(p.requires_grad and p.grad is not None for p in block.parameters())
            if name in self._expected and forward and not backward and trains:
                cause = self._cause(name, block)
                if cause is CoverageCause.PLAIN and self._counter.recomputed_inside(name):
                    continue  # its library checkpoints parts of it
                found.setdefault((GuardFaultKind.NOT_RECOMPUTED, cause, (forward, 0)), []).append(name)
            elif backward > forward > 0:
                found.setdefault(
                    (GuardFaultKind.RECOMPUTED_AGAIN, CoverageCause.TWICE, (forward, backward)), []
                ).append(name)
        return [GuardFault(kind, tuple(names), cause, counts) for (kind, cause, counts), names in found.items()]

    def _cause(self, name: str, block: nn.Module) -> CoverageCause:
        if name in self._evaluating:
            return CoverageCause.EVALUATION
        if isinstance(vars(block).get("forward"), BlockForward):
            return CoverageCause.UNKNOWN
        if is_layer(block):
            return CoverageCause.REPLACED if _is_replaced(block) else CoverageCause.UNKNOWN
        return CoverageCause.PLAIN


def _is_on(model: nn.Module, name: str, block: nn.Module) -> bool:
    """Whether a block is to be checkpointed: by its surgery, or by a switch of its library around it."""
    if isinstance(vars(block).get("forward"), BlockForward):
        return vars(block).get(FUNCTION) is not None
    if is_layer(block):
        return bool(getattr(block, FLAG, False))
    parts = name.split(".")
    around = [model.get_submodule(".".join(parts[:end])) for end in range(len(parts))]
    return any(
        getattr(module, flag)
        for module in around
        for flag in (flags_of(module) if checkpoints_itself(module) else [FLAG])
        if isinstance(getattr(module, flag, None), bool)
    )


def _is_replaced(block: nn.Module) -> bool:
    """Whether something else stands where the forward of a checkpointing layer was, on the instance or its class."""
    if "forward" in vars(block):
        return True
    base = next(kind for kind in type(block).__mro__ if kind.__name__ == "GradientCheckpointingLayer")
    wraps = "__call__" not in vars(base)  # late 5.x wraps the forward of each subclass when that is made
    return wraps and not hasattr(type(block).forward, "__wrapped__")
