"""Whether the ranks of a DistributedDataParallel step on the same gradients.

Each rank lays a few sums over sampled gradients into the store at which the ranks have met, and looks for those of the
others in later steps. Nothing waits for another rank, and no collective joins those of the training: ranks that check
in other steps, or not at all, are not compared, and nobody hangs.
"""

from __future__ import annotations

import gc
import json
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from ckpt_surgery.guarding.faults import GuardFault, GuardFaultKind
from ckpt_surgery.runtime.self_check.fingerprints import bits_of

_MOST_SAMPLED = 24
_MOST_POLLS = 20
"""In so many steps a rank looks for what the others laid down."""

Sums = Mapping[str, tuple[int, int | None]]
"""The sums over the bits of a parameter and of its gradient, by name; None where it has no gradient."""


class RankGradients:
    """Compares sampled gradients of one model over the ranks of its wrapper. `compared` counts the comparisons.

    Gradients are taken when the optimizer steps: whoever averages them, and however many forwards they are
    accumulated over, they have to be the same then.
    """

    def __init__(self, model: nn.Module, wrapper: DistributedDataParallel) -> None:
        self.compared = 0
        self._rank = dist.get_rank()
        self._ranks: tuple[int, ...] = tuple(dist.get_process_group_ranks(wrapper.process_group))
        place = f"{type(model).__name__} of {len(list(model.parameters()))}, ranks from {self._ranks[0]}"
        _MADE[place] += 1
        default = dist.distributed_c10d._get_default_store()
        self._store = dist.distributed_c10d.PrefixStore(f"ckpt_surgery guard {place}: {_MADE[place]}", default)
        self._parameters = {
            name: p for name, p in model.named_parameters() if p.requires_grad and not isinstance(p, DTensor)
        }
        self._ids = {id(p) for p in self._parameters.values()}
        self._aligned = False
        self._armed: RemovableHandle | None = None
        self._number = 0
        self._pending: dict[int, int] = {}
        self._laid_down: deque[int] = deque()

    @classmethod
    def of(cls, model: nn.Module, wrapper: DistributedDataParallel | None) -> RankGradients | None:
        """The comparison for a model in `wrapper`, or in whichever it is found in; None where there is none."""
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() < 2:
            return None
        wrapper = wrapper if wrapper is not None else _wrapper_of(model)
        if wrapper is None or dist.get_world_size(wrapper.process_group) < 2:
            return None
        return cls(model, wrapper)

    def arm(self, number: int) -> None:
        """Take the sums at the next step of an optimizer that holds parameters of the model, under this number."""
        self.disarm()
        self._number = number
        self._armed = register_optimizer_step_pre_hook(self._before_step)

    def disarm(self) -> None:
        """Take no sums."""
        if self._armed is not None:
            self._armed.remove()
            self._armed = None

    def collect(self) -> list[GuardFault]:
        """The faults in what all ranks have laid down by now."""
        faults: list[GuardFault] = []
        for number in list(self._pending):
            self._pending[number] += 1
            try:
                there = self._store.check([f"{number}/{rank}" for rank in self._ranks])
                gathered = [json.loads(self._store.get(f"{number}/{r}")) for r in self._ranks] if there else []
            except RuntimeError:  # the process that keeps the store is gone
                self._pending.clear()
                break
            if gathered:
                self.compared += 1
                faults += self._judged([{name: (w, g) for name, (w, g) in sums.items()} for sums in gathered])
            if gathered or self._pending[number] >= _MOST_POLLS:
                del self._pending[number]
        return faults

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not any(id(p) in self._ids for group in optimizer.param_groups for p in group["params"]):
            return
        self.disarm()
        try:
            self._store.set(f"{self._number}/{self._rank}", json.dumps(self._sums()))
            self._laid_down.append(self._number)
            if len(self._laid_down) > _MOST_POLLS:
                self._store.delete_key(f"{self._laid_down.popleft()}/{self._rank}")
        except RuntimeError:
            return
        self._pending[self._number] = 0

    def _sums(self) -> Sums:
        names = list(self._parameters)
        stride = -(-len(names) // _MOST_SAMPLED) or 1
        chosen = names[self._number % stride :: stride]
        sums: list[Tensor] = []
        for name in chosen:
            parameter = self._parameters[name]
            gradient = parameter.grad
            both = (parameter.detach(), parameter.detach() if gradient is None else gradient)
            sums += [bits for tensor in both if (bits := bits_of(tensor)) is not None]
        if len(sums) != 2 * len(chosen):
            return {}
        numbers = [number for device in _by_device(sums) for number in device]
        having = [self._parameters[name].grad is not None for name in chosen]
        pairs = zip(numbers[::2], numbers[1::2], having, strict=True)
        return {n: (weight, own if has else None) for n, (weight, own, has) in zip(chosen, pairs, strict=True)}

    def _judged(self, by_rank: Sequence[Sums]) -> list[GuardFault]:
        weights, gradients = (_Split.of(by_rank, which) for which in (0, 1))
        if not weights.names and gradients.names:
            self._aligned = True
            return [GuardFault(GuardFaultKind.GRADIENTS_APART, gradients.names, ranks=self._named(gradients))]
        some = any(gradient is not None for _, gradient in by_rank[0].values())
        self._aligned |= not weights.names or (some and not gradients.names)
        if weights.names and self._aligned:  # else the ranks may be in other steps
            return [GuardFault(GuardFaultKind.WEIGHTS_APART, weights.names, ranks=self._named(weights))]
        return []

    def _named(self, split: _Split) -> tuple[int, ...]:
        return tuple(self._ranks[place] for place in split.odd)


_MADE: Counter[str] = Counter()
"""How many comparisons were made for a model: by that number the ranks find those of the same guard."""


@dataclass(frozen=True, slots=True)
class _Split:
    """The names of which ranks have different sums, and the places of the ranks that differ from most of them."""

    names: tuple[str, ...]
    odd: tuple[int, ...]

    @classmethod
    def of(cls, by_rank: Sequence[Sums], which: int) -> _Split:
        everywhere = [name for name in by_rank[0] if all(name in sums for sums in by_rank)]
        rows = [tuple(sums[name][which] for name in everywhere) for sums in by_rank]
        usual = Counter(rows).most_common(1)[0][0]
        names = tuple(n for place, n in enumerate(everywhere) if len({row[place] for row in rows}) > 1)
        return cls(names, tuple(place for place, row in enumerate(rows) if row != usual))


def _by_device(sums: Sequence[Tensor]) -> list[list[int]]:
    """The numbers, in order: one transfer where all are on one device."""
    if len({tensor.device for tensor in sums}) == 1:
        numbers: list[int] = torch.stack(list(sums)).tolist()
        return [numbers]
    return [[int(tensor)] for tensor in sums]


def _wrapper_of(model: nn.Module) -> DistributedDataParallel | None:
    """The wrapper around a model that runs without it: the model does not know of it."""
    for thing in gc.get_objects():
        if issubclass(type(thing), DistributedDataParallel) and vars(thing).get("_modules", {}).get("module") is model:
            return thing  # type: ignore[no-any-return]
    return None
