"""Find what the script checkpoints by itself, and tell whether each block of a step is recomputed exactly once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from functools import partial

from torch import nn

from ckpt_surgery.guarding.faults import CoverageCause, GuardFault, GuardFaultKind
from ckpt_surgery.guarding.steps import StepWatch, WatchedPhase
from ckpt_surgery.measure.block_entries import EntryCounter
from ckpt_surgery.measure.model_hook import ModelHook
from ckpt_surgery.measure.own_checkpoints import checkpoint_call
from ckpt_surgery.model_patches.release_names import FLAG, FUNCTION, LAYER_CLASS
from ckpt_surgery.runtime.blocks.discovery import enclosing, is_layer, nearest
from ckpt_surgery.runtime.blocks.library_switch import flags_of
from ckpt_surgery.runtime.checkpoint.block_forward import BlockForward
from ckpt_surgery.runtime.tools.containers import tensors


class OwnBlocks(StepWatch):
    """Finds the outermost modules with trained parameters that run in the script's checkpoints, by name.

    `ran` are the names of those that have run at all.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.found: dict[str, nn.Module] = {}
        self.ran: set[str] = set()
        for name, module in model.named_modules():
            if name and any(parameter.requires_grad for parameter in module.parameters()):
                hook = ModelHook(partial(self._enter, name))
                self._handles.append(module.register_forward_pre_hook(hook))

    def _enter(self, name: str, module: nn.Module, _: object) -> None:
        self.ran.add(name)
        if self.phase is WatchedPhase.FORWARD and not nearest(name, self.found) and checkpoint_call():
            self.found[name] = module


class Coverage(StepWatch):
    """Counts the entries of `blocks` in one step of `model`, and calls `on_recompute` as each recompute begins."""

    def __init__(
        self,
        model: nn.Module,
        blocks: Mapping[str, nn.Module],
        on_recompute: Callable[[nn.Module], None] | None = None,
    ) -> None:
        super().__init__()
        self._blocks = blocks
        self._expected = {name for name, block in blocks.items() if self._is_switched_on(model, name, block)}
        self._evaluating = {name for name, block in blocks.items() if not block.training}
        self._reached: set[str] = set()
        self._hooks = ExitStack()
        for name in self._evaluating & self._expected:
            hook = blocks[name].register_forward_hook(ModelHook(partial(self._await_gradient, name)))
            self._hooks.callback(hook.remove)
        self._counter = self._hooks.enter_context(EntryCounter(model, blocks, on_recompute))

    @staticmethod
    def _is_switched_on(model: nn.Module, name: str, block: nn.Module) -> bool:
        """Tell whether a block should be checkpointed: by its surgery, or by a library switch on it or around it."""
        if isinstance(vars(block).get("forward"), BlockForward):
            return vars(block).get(FUNCTION) is not None
        if is_layer(block):
            return bool(getattr(block, FLAG, False))
        around = [model, *map(model.get_submodule, enclosing(name))]
        return any(getattr(module, flag) for module in around for flag in flags_of(module))

    def enter(self, phase: WatchedPhase) -> None:
        """Count entries in the backward as recomputes, and ignore those of a forward set aside."""
        if phase is WatchedPhase.BACKWARD:
            self._counter.start_backward()
        else:
            self._counter.set_aside(phase is WatchedPhase.ASIDE)

    def undo(self) -> None:
        self._hooks.close()

    def _await_gradient(self, name: str, _: nn.Module, __: object, output: object) -> None:
        """Note that a backward reaches a block's results, for blocks whose parameters may all be frozen."""
        for result in tensors(output):
            if result.requires_grad:
                result.register_hook(ModelHook(lambda _: self._reached.add(name)))  # type: ignore[no-untyped-call]

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return the entries of each block in the forward and in the backward."""
        return {name: (entries.forward, entries.backward) for name, entries in self._counter.entries().items()}

    def faults(self, own: Collection[str]) -> list[GuardFault]:
        """Return the faults of the step, merged by kind and cause; `own` are what the script checkpoints by itself."""
        counts = self.counts()
        missing = {name: counts[name][0] - counts[name][1] for name in own if name in counts}
        lost = [name for name, count in missing.items() if count > 0]
        extra = [name for name, count in missing.items() if count < 0]
        if extra and lost and sum(missing.values()) == 0:
            return [GuardFault(GuardFaultKind.OTHER_BLOCK, (extra[0], *lost))]
        merged: dict[tuple[GuardFaultKind, CoverageCause, tuple[int, int]], list[str]] = {}
        for name, (forward, backward) in counts.items():
            if backward > forward > 0:
                fault = GuardFaultKind.RECOMPUTED_AGAIN, CoverageCause.TWICE
            elif forward and not backward and self._should_recompute(name):
                fault = GuardFaultKind.NOT_RECOMPUTED, self._cause(name)
            else:
                continue
            merged.setdefault((*fault, (forward, backward)), []).append(name)
        return [GuardFault(kind, tuple(names), cause, counts) for (kind, cause, counts), names in merged.items()]

    def _should_recompute(self, name: str) -> bool:
        """Tell whether a block should be recomputed whole: it trains, and its library checkpoints no part of it."""
        if name not in self._expected:
            return False
        trained = any(p.requires_grad and p.grad is not None for p in self._blocks[name].parameters())
        trains = trained or name in self._reached
        in_parts = self._cause(name) is CoverageCause.PLAIN and self._counter.recomputed_inside(name)
        return trains and not in_parts

    def _cause(self, name: str) -> CoverageCause:
        block = self._blocks[name]
        if name in self._evaluating:
            return CoverageCause.EVALUATION
        if isinstance(vars(block).get("forward"), BlockForward):
            return CoverageCause.UNKNOWN
        if not is_layer(block):
            return CoverageCause.PLAIN
        base = next(kind for kind in type(block).__mro__ if kind.__name__ == LAYER_CLASS)
        wraps = "__call__" not in vars(base)  # late 5.x wraps the forward of each subclass instead
        replaced = "forward" in vars(block) or (wraps and not hasattr(type(block).forward, "__wrapped__"))
        return CoverageCause.REPLACED if replaced else CoverageCause.UNKNOWN
