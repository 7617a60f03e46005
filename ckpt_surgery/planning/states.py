"""What an optimizer keeps for the parameters that it trains."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from torch import nn

from ckpt_surgery.planning.optimizers import Optimizer

_BLOCK = 256
_SMALLEST_8BIT = 4096


def state_bytes(parameters: Iterable[nn.Parameter], optimizer: Optimizer) -> int:
    """The bytes of the optimizer's state on the device, once it has made a step. Frozen parameters have none.

    The counters of steps are left out: four bytes a parameter, in host memory unless the optimizer is fused.
    """
    trained = {id(parameter): parameter for parameter in parameters if parameter.requires_grad}
    return sum(state_of(tuple(each.shape), each.itemsize, optimizer) for each in trained.values())


def state_of(shape: tuple[int, ...], itemsize: int, optimizer: Optimizer) -> int:
    """The bytes of the optimizer's state for one parameter of this shape, or part of one."""
    count = prod(shape)
    match optimizer:
        case Optimizer.SGD_MOMENTUM:
            return count * itemsize
        case Optimizer.ADAMW:
            return 2 * count * itemsize
        case Optimizer.ADAMW_8BIT:
            if count < _SMALLEST_8BIT:
                return 2 * count * 4
            return 2 * (count + 4 * -(-count // _BLOCK))
        case Optimizer.ADAFACTOR:
            if len(shape) < 2:
                return count * itemsize
            rows, columns = count // shape[-1], count // shape[-2]
            return (rows + columns) * itemsize
        case _:
            return 0
