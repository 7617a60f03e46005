"""What an optimizer keeps for the parameters that it trains, and what of it each rank of several holds."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from ckpt_surgery.planning.optimizers import Optimizer

_BLOCK = 256
_SMALLEST_8BIT = 4096


def state_bytes(parameters: Iterable[nn.Parameter], optimizer: Optimizer) -> int:
    """The bytes of the optimizer's state on the device, once it has made a step. Frozen parameters have none.

    The counters of steps are left out: four bytes a parameter, in host memory unless the optimizer is fused.
    """
    trained = {id(parameter): parameter for parameter in parameters if parameter.requires_grad}
    return sum(_state_of(parameter, optimizer) for parameter in trained.values())


def _state_of(parameter: nn.Parameter, optimizer: Optimizer) -> int:
    count, itemsize = parameter.numel(), parameter.itemsize
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
            if parameter.ndim < 2:
                return count * itemsize
            rows, columns = count // parameter.shape[-1], count // parameter.shape[-2]
            return (rows + columns) * itemsize
        case _:
            return 0
