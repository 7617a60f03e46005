"""Compare the gradients that the ranks of a DistributedDataParallel have as their optimizers step.

Each rank puts a few sums over sampled gradients into the store through which the ranks found each other, and looks for
those of the others in later steps. No rank waits for another: ranks that check in other steps go uncompared.
"""

from __future__ import annotations

import gc
import json
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ckpt_surgery.guarding.faults import GuardFault, GuardFaultKind
from ckpt_surgery.measure.model_hook import ModelHook
from ckpt_surgery.runtime.self_check.fingerprints import Fingerprint
from ckpt_surgery.torch_names import default_store
from ckpt_surgery.undo import UndoableHooks

_MOST_SAMPLED = 24  # parameters in a comparison
_MOST_POLLS = 20
"""In this many checked steps a rank looks for the sums of the others."""

Sums = Mapping[str, tuple[int, int | None]]
"""The sums over the bits of a parameter and of its gradient, by name; None if it has no gradient."""
_COMPARISONS: Counter[str] = Counter()
"""How many comparisons were made for a model: the number identifies those of the same guard on all ranks."""


class RankGradients(UndoableHooks):
    """Compares one model's sampled gradients over the ranks of its wrapper. `compared` counts comparisons.

    Gradients are taken when the optimizer steps: whoever averages them, and however many forwards they are
    accumulated over, they have to be the same then.
    """

    def __init__(self, model: nn.Module, wrapper: DistributedDataParallel) -> None:
        super().__init__()
        self.compared = 0
        self._rank = dist.get_rank()
        self._ranks: tuple[int, ...] = tuple(dist.get_process_group_ranks(wrapper.process_group))
        place = f"{type(model).__name__} of {len(list(model.parameters()))}, ranks from {self._ranks[0]}"
        _COMPARISONS[place] += 1
        default = default_store()
        self._store = dist.distributed_c10d.PrefixStore(f"ckpt_surgery guard {place}: {_COMPARISONS[place]}", default)
        self._parameters = {
            name: p for name, p in model.named_parameters() if p.requires_grad and not isinstance(p, DTensor)
        }
        self._aligned = False  # whether ranks were seen to compare the same steps
        self._number = 0
        self._pending: dict[int, int] = {}
        self._stored: deque[int] = deque()

    @classmethod
    def of(cls, model: nn.Module, wrapper: DistributedDataParallel | None) -> RankGradients | None:
        """Return the comparison for a model in `wrapper`, or in a wrapper found around it; None without one."""
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() < 2:
            return None
        if wrapper is None:  # the model does not know what wraps it
            wrappers = (thing for thing in gc.get_objects() if issubclass(type(thing), DistributedDataParallel))
            wrapper = next((w for w in wrappers if vars(w).get("_modules", {}).get("module") is model), None)
        if wrapper is None or dist.get_world_size(wrapper.process_group) < 2:
            return None
        return cls(model, wrapper)

    def arm(self, number: int) -> None:
        """Take the sums, under this number, at the next step of an optimizer that holds parameters of the model."""
        self.undo()
        self._number = number
        self._handles.append(register_optimizer_step_pre_hook(ModelHook(self._before_step)))

    def collect(self) -> list[GuardFault]:
        """Return the faults in the sums that all ranks have stored by now."""
        faults: list[GuardFault] = []
        for number in list(self._pending):
            self._pending[number] += 1
            keys = [f"{number}/{rank}" for rank in self._ranks]
            try:
                gathered = [json.loads(self._store.get(key)) for key in keys] if self._store.check(keys) else []
            except RuntimeError:  # the process that keeps the store is gone
                self._pending.clear()
                break
            if gathered:
                self.compared += 1
                faults += self._faults_in(gathered)
            if gathered or self._pending[number] >= _MOST_POLLS:
                del self._pending[number]
        return faults

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        own = set(map(id, self._parameters.values()))
        if own.isdisjoint(id(p) for group in optimizer.param_groups for p in group["params"]):
            return
        self.undo()
        try:
            self._store.set(f"{self._number}/{self._rank}", json.dumps(self._sums()))
            self._stored.append(self._number)
            if len(self._stored) > _MOST_POLLS:
                self._store.delete_key(f"{self._stored.popleft()}/{self._rank}")
        except RuntimeError:
            return
        self._pending[self._number] = 0

    def _sums(self) -> Sums:
        stride = -(-len(self._parameters) // _MOST_SAMPLED) or 1
        chosen = dict(list(self._parameters.items())[self._number % stride :: stride])
        alternating = [each.detach() for p in chosen.values() for each in (p, p if p.grad is None else p.grad)]
        sums = [made.bits for tensor in alternating if (made := Fingerprint.of(tensor)) is not None]
        if len(sums) != len(alternating):
            return {}
        one_device = len({tensor.device for tensor in sums}) == 1  # then it takes one transfer
        numbers: list[int] = torch.stack(sums).tolist() if one_device else list(map(int, sums))
        pairs = zip(chosen.items(), numbers[::2], numbers[1::2], strict=True)
        return {name: (weight, None if p.grad is None else gradient) for (name, p), weight, gradient in pairs}

    def _faults_in(self, by_rank: Sequence[Sums]) -> list[GuardFault]:
        (weights, odd), (gradients, odd_gradients) = (self._apart(by_rank, which) for which in (0, 1))
        if gradients and not weights:
            self._aligned = True
            return [GuardFault(GuardFaultKind.GRADIENTS_APART, gradients, ranks=odd_gradients)]
        some = any(gradient is not None for _, gradient in by_rank[0].values())
        self._aligned |= not weights or (some and not gradients)
        if weights and self._aligned:  # else the ranks may be in other steps
            return [GuardFault(GuardFaultKind.WEIGHTS_APART, weights, ranks=odd)]
        return []

    def _apart(self, by_rank: Sequence[Sums], which: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return the names whose sums differ between ranks, and the ranks that differ from most of them."""
        everywhere = [name for name in by_rank[0] if all(name in sums for sums in by_rank)]
        rows = [tuple(sums[name][which] for name in everywhere) for sums in by_rank]
        usual = Counter(rows).most_common(1)[0][0]
        names = tuple(name for name, *column in zip(everywhere, *rows, strict=True) if len(set(column)) > 1)
        return names, tuple(rank for rank, row in zip(self._ranks, rows, strict=True) if row != usual)
