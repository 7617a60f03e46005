"""Cast a model and its inputs to another precision for one step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ckpt_surgery.measure.kinds import Precision
from ckpt_surgery.torch_names import ConvNd, TorchDispatchMode

DTYPES = {Precision.BFLOAT16: torch.bfloat16, Precision.FLOAT16: torch.float16}
AUTOCAST = torch.bfloat16
"""In which autocast computes."""
WIDE = (torch.float32, torch.float64)
"""The dtypes that are cast."""
_CONVOLUTIONS = (torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default)


@contextmanager
def in_precision(model: nn.Module, precision: Precision | None) -> Iterator[None]:
    """Run the model in this precision inside the `with`, and restore it on exit; None changes nothing.

    Others stand in for its parameters and buffers. In float16 on a CPU, convolutions are computed in float32 and
    rounded: torch's own take up to a hundred times as long.
    """
    if precision is None:
        yield
    elif precision is Precision.AUTOCAST:
        device = next((parameter.device.type for parameter in model.parameters()), "cpu")
        with torch.autocast(device, dtype=AUTOCAST):
            yield
    else:
        with _cast(model, DTYPES[precision]), _quick_convolutions(model, precision):
            yield


def cast_to(value: Any, precision: Precision | None) -> Any:
    """Cast a tensor of a wide float dtype to a precision; return anything else as it is."""
    dtype = None if precision is None else DTYPES.get(precision)
    if dtype is None or not isinstance(value, Tensor) or value.dtype not in WIDE:
        return value
    return value.detach().to(dtype).requires_grad_(value.requires_grad)


@contextmanager
def _cast(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Replace parameters instead of writing them: a cast in place would drop the hooks that others have on them."""
    stand_ins: dict[int, nn.Parameter] = {}
    replaced: list[tuple[dict[str, Any], str, Tensor]] = []
    for module in model.modules():
        tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for held in tables:
            for name, tensor in list(held.items()):
                if tensor is None or tensor.dtype not in WIDE:
                    continue
                replaced.append((held, name, tensor))
                if isinstance(tensor, nn.Parameter):
                    if id(tensor) not in stand_ins:
                        stand_ins[id(tensor)] = _parameter(tensor, dtype)
                    held[name] = stand_ins[id(tensor)]
                else:
                    held[name] = tensor.to(dtype)
    try:
        yield
    finally:
        for table, name, tensor in replaced:
            table[name] = tensor


def _quick_convolutions(model: nn.Module, precision: Precision) -> AbstractContextManager[object]:
    slow = (m for m in model.modules() if isinstance(m, ConvNd) and m.weight.device.type == "cpu")
    wide = precision is Precision.FLOAT16 and any(slow)
    return _WideConvolutions() if wide else nullcontext()  # type: ignore[no-untyped-call]


class _WideConvolutions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes the convolutions of float16 tensors in float32, as devices add up their terms too."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func not in _CONVOLUTIONS or args[0].dtype != torch.float16 or args[0].device.type != "cpu":
            return func(*args, **(kwargs or {}))
        wide = [value.float() if isinstance(value, Tensor) else value for value in args]
        result = func(*wide, **(kwargs or {}))
        return tuple(map(_narrow, result)) if isinstance(result, tuple) else _narrow(result)


def _narrow(result: Tensor | None) -> Tensor | None:
    return None if result is None else result.half()


def _parameter(parameter: nn.Parameter, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(parameter.detach().to(dtype), requires_grad=parameter.requires_grad)
