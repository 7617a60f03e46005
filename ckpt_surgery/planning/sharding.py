"""Turn a step of one device into that of one rank of several: what it holds, gathers and reduces, and when.

FSDP2 is `fully_shard` with its defaults on each block and on the model around them; ZeRO is DeepSpeed's, with its
defaults. A rank computes what one device computes, on its own batch. Nothing is run here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from torch import nn

from ckpt_surgery.planning.allocations import Allocation, AllocationKind, ModulePlace, StepAllocations, StepPhase
from ckpt_surgery.planning.states import parameter_bytes, state_bytes, state_of
from ckpt_surgery.planning.training import Sharding, TrainingSetup
from ckpt_surgery.runtime.blocks.discovery import nearest

BUCKET_ELEMENTS = 500_000_000
"""DeepSpeed's `reduce_bucket_size`: gradients are kept in a buffer of this many elements until they are reduced."""
LIVE_ELEMENTS = 1_000_000_000
"""DeepSpeed's `stage3_max_live_parameters`: this many elements stay gathered before ZeRO-3 releases any."""
_FLOAT32_BYTES = 4
"""The bytes of float32, in which DeepSpeed keeps optimizer state and a second copy of half-precision weights."""
_GATHER, _REDUCE = "all_gather", "reduce_scatter"


@dataclass(slots=True)
class _Unit:
    """A unit of gathering and reducing: a block, or everything outside blocks, whose name is empty.

    `forward` and `backward` are the numbers of its operators that allocate.
    """

    name: str
    gathered: int = 0
    forward: list[int] = field(default_factory=list)
    backward: list[int] = field(default_factory=list)


class _Units:
    """FSDP2's units in a step, by name: the outermost blocks and the rest, with what they gather and when they run."""

    def __init__(self, step: StepAllocations, model: nn.Module, blocks: Sequence[str], ranks: int) -> None:
        self._step, self._ranks = step, ranks
        outer = [name for name in blocks if not any(name.startswith(f"{other}.") for other in blocks)]
        self._units = units = {name: _Unit(name) for name in ("", *outer)}
        for name, parameter in model.named_parameters():
            units[nearest(name, units)].gathered += prod(shard_of(parameter.shape, ranks)) * ranks * parameter.itemsize
        for allocation in step.allocations:
            unit = units[nearest(allocation.place.module, units)]
            (unit.forward if allocation.phase is StepPhase.FORWARD else unit.backward).append(allocation.born)
        # the blocks in the order of the backward: each with its span of operators and the block after it
        ran = [unit for unit in units.values() if unit.name and unit.backward]
        ran.sort(key=lambda unit: max(unit.backward))
        pairs = zip(ran, [*ran[1:], None], strict=False)
        self._backward = [(unit, _span(unit.backward), after) for unit, after in pairs]

    def gathered(self) -> Iterator[Allocation]:
        """Yield what each unit gathers, and when: parameters while it runs, and all the time those in no block.

        There is always a second buffer (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py): in the forward the
        one that was gathered into, until that of the next unit is copied out; in the backward that of the next unit.
        """
        step, units = self._step, self._units
        yield _made(units[""].gathered, "", _GATHER, StepPhase.FORWARD, (1, step.operators))
        for unit in units.values():
            if unit.name and unit.forward:
                yield _made(2 * unit.gathered, unit.name, _GATHER, StepPhase.FORWARD, _span(unit.forward))
        before = step.backward_at + 1
        for unit, span, following in self._backward:
            coming = following.gathered if following else 0
            yield _made(unit.gathered + coming, unit.name, _GATHER, StepPhase.BACKWARD, span)
            if before:  # for the one that runs backward first
                yield _made(unit.gathered, unit.name, _GATHER, StepPhase.BACKWARD, (before, span[0] - 1))
                before = 0

    def reduced(self) -> Iterator[Allocation]:
        """Yield the step's allocations, gradients reduced to parts once their unit has run backward, and the buffers.

        Gradients are copied into a buffer, which is held until the next unit's are. Those of what is in no block are
        reduced at the end.
        """
        step = self._step
        ends = {unit.name: span[1] for unit, span, _ in self._backward}
        reduced_at = {unit.name: ends[after.name] if after else step.operators for unit, _, after in self._backward}
        copied: Counter[str] = Counter()
        for allocation in step.allocations:
            if allocation.kind is not AllocationKind.GRADIENT:
                yield allocation
                continue
            unit = nearest(allocation.place.module, self._units)
            end = max(ends.get(unit, step.operators), allocation.born)
            part = _part(allocation.bytes, self._ranks)
            copied[unit] += part * self._ranks
            yield replace(allocation, died=end, kind=AllocationKind.BACKWARD)
            yield replace(allocation, bytes=part, shape=(_part(prod(allocation.shape), self._ranks),), born=end)
        for name, held in copied.items():
            span = (ends.get(name, step.operators), reduced_at.get(name, step.operators))
            yield _made(held, name, _REDUCE, StepPhase.BACKWARD, span)


def held_states(parameters: Iterable[nn.Parameter], training: TrainingSetup) -> tuple[int, int]:
    """Count the bytes of parameters, and of their optimizer's state, that the fullest rank holds through the step."""
    every = list({id(parameter): parameter for parameter in parameters}.values())
    trained = [parameter for parameter in every if parameter.requires_grad]
    ranks, optimizer = training.ranks, training.optimizer
    whole = sum(map(parameter_bytes, every))
    match training.sharding:
        case None:
            return whole, state_bytes(every, optimizer)
        case Sharding.FSDP:
            held = sum(prod(shard_of(p.shape, ranks)) * p.itemsize for p in every)
            return held, sum(state_of(shard_of(p.shape, ranks), p.itemsize, optimizer) for p in trained)
        case _:
            flat = _part(sum(parameter.numel() for parameter in trained), ranks)
            half = _part(sum(parameter.numel() for parameter in trained if parameter.itemsize < _FLOAT32_BYTES), ranks)
            state = state_of((flat,), _FLOAT32_BYTES, optimizer) + half * _FLOAT32_BYTES if flat else 0
            divides = training.sharding is Sharding.ZERO_3
            return sum(_part(p.numel(), ranks) * p.itemsize for p in every) if divides else whole, state


def sharded(
    step: StepAllocations, model: nn.Module, blocks: Sequence[str], training: TrainingSetup
) -> StepAllocations:
    """Return the step as one rank sees it, unchanged on one device; `blocks` are the names of FSDP2's units."""
    match training.sharding:
        case None:
            return step
        case Sharding.FSDP:
            units = _Units(step, model, blocks, training.ranks)
            return replace(step, allocations=(*units.gathered(), *units.reduced()))
        case _:
            return replace(step, allocations=tuple(_zero(step, model, training)))


def shard_of(shape: Sequence[int], ranks: int) -> tuple[int, ...]:
    """Return the shape of a tensor's part on the first rank: FSDP2 cuts the first dimension and pads the last part."""
    return (_part(shape[0], ranks), *shape[1:]) if shape else ()


def _span(numbers: Sequence[int]) -> tuple[int, int]:
    return min(numbers), max(numbers)


def _part(count: int, ranks: int) -> int:
    return -(-count // ranks)


def _zero(step: StepAllocations, model: nn.Module, training: TrainingSetup) -> Iterator[Allocation]:
    """Yield what a rank allocates with ZeRO.

    Gradients go through one bucket. From stage 2 on a rank keeps only its part of each, and with stage 3 it gathers
    weights. How many weights ZeRO-3 keeps gathered depends on the order of a trace: the upper limit is taken.
    """
    parameters = list(model.parameters())
    for allocation in step.allocations:
        if allocation.kind is not AllocationKind.GRADIENT or training.sharding is Sharding.ZERO_1:
            yield allocation
            continue
        part = _part(allocation.bytes, training.ranks)
        yield replace(allocation, died=allocation.born, kind=AllocationKind.BACKWARD)
        yield replace(allocation, bytes=part, shape=(_part(prod(allocation.shape), training.ranks),))
    widest = max((parameter.itemsize for parameter in parameters if parameter.requires_grad), default=0)
    trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    if trained:
        bucket = min(trained, BUCKET_ELEMENTS) * widest
        yield _made(bucket, "", _REDUCE, StepPhase.BACKWARD, (step.backward_at + 1, step.operators))
    if training.sharding is Sharding.ZERO_3:
        count = sum(parameter.numel() for parameter in parameters)
        whole = sum(map(parameter_bytes, parameters))
        live = whole * min(count, LIVE_ELEMENTS) // max(count, 1)
        yield _made(live, "", _GATHER, StepPhase.FORWARD, (1, step.operators))


def _made(held: int, module: str, operator: str, phase: StepPhase, span: tuple[int, int]) -> Allocation:
    return Allocation(
        bytes=held,
        dtype="bytes",
        shape=(held,),
        operator=operator,
        place=ModulePlace(module),
        phase=phase,
        kind=AllocationKind.GATHERED,
        keeper="",
        kept_at=ModulePlace(),
        born=span[0],
        died=span[1],
    )
