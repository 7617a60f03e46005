"""Count the bytes of parameters, and of what an optimizer keeps for those that it trains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

from torch import Tensor, nn

from ckpt_surgery.planning.training import Optimizer
from ckpt_surgery.runtime.tools.tensors import inner_tensors, is_wrapper

_BLOCK = 256  # elements that share a scale
_SMALLEST_8BIT = 4096  # parameters with fewer elements get float32 states
_DEPTH = 2
"""How many attributes deep the scales of scales are below a parameter."""


def parameter_bytes(parameter: nn.Parameter) -> int:
    """Count the bytes of a parameter, and of what a quantized one keeps beside it, such as its scales."""
    beside = [] if is_wrapper(type(parameter)) or type(parameter) is nn.Parameter else _tensors_in(vars(parameter))
    return sum(map(bytes_of, [parameter, *{id(tensor): tensor for tensor in beside}.values()]))


def _tensors_in(attributes: Mapping[str, Any], depth: int = _DEPTH) -> Iterator[Tensor]:
    for value in attributes.values():
        if isinstance(value, Tensor):
            yield value
        elif depth and hasattr(value, "__dict__") and not isinstance(value, (nn.Module, type)):
            yield from _tensors_in(vars(value), depth - 1)


def state_bytes(parameters: Iterable[nn.Parameter], optimizer: Optimizer) -> int:
    """Count the bytes of the optimizer's state on the device after its first step. Frozen parameters have none.

    The step counters are left out: four bytes a parameter, in host memory unless the optimizer is fused.
    """
    trained = {id(parameter): parameter for parameter in parameters if parameter.requires_grad}
    return sum(state_of(tuple(each.shape), each.itemsize, optimizer) for each in trained.values())


def state_of(shape: tuple[int, ...], itemsize: int, optimizer: Optimizer) -> int:
    """Count the bytes of the optimizer's state for one parameter of this shape, or part of one."""
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


def bytes_of(tensor: Tensor) -> int:
    """Count the bytes of a tensor's elements: if it is quantized or sharded, of those that are held here."""
    return sum(inner.numel() * inner.itemsize for inner in inner_tensors(tensor))
