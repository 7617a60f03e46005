"""Cast a model and its inputs to another precision for one step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ckpt_surgery.measure.kinds import Precision
from ckpt_surgery.runtime.checkpoint.state import put_for
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
        slow = any(isinstance(m, ConvNd) and m.weight.device.type == "cpu" for m in model.modules())
        wide = precision is Precision.FLOAT16 and slow
        with _cast(model, DTYPES[precision]), _WideConvolutions() if wide else nullcontext():  # type: ignore[no-untyped-call]
            yield


def autocast_of(module: nn.Module) -> tuple[bool, torch.dtype | None]:
    """Tell whether autocast is on for the device of a module, and to which dtype it casts if so."""
    parameters = nn.Module.parameters(module)  # a module's own may take arguments
    device = next((parameter.device.type for parameter in parameters), "cpu")
    enabled = torch.is_autocast_enabled(device)
    return enabled, torch.get_autocast_dtype(device) if enabled else None


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
    with ExitStack() as stack:
        for module in model.modules():
            tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
            for table, name, tensor in [(held, *item) for held in tables for item in held.items()]:
                if tensor is None or tensor.dtype not in WIDE:
                    continue
                if isinstance(tensor, nn.Parameter) and id(tensor) not in stand_ins:
                    cast = tensor.detach().to(dtype)
                    stand_ins[id(tensor)] = nn.Parameter(cast, requires_grad=tensor.requires_grad)
                put_for(stack, table, name, stand_ins[id(tensor)] if id(tensor) in stand_ins else tensor.to(dtype))
        yield


class _WideConvolutions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes the convolutions of float16 tensors in float32, as devices add up their terms too."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func not in _CONVOLUTIONS or args[0].dtype != torch.float16 or args[0].device.type != "cpu":
            return func(*args, **(kwargs or {}))
        wide = [value.float() if isinstance(value, Tensor) else value for value in args]
        result = func(*wide, **(kwargs or {}))
        if isinstance(result, tuple):
            return tuple(None if part is None else part.half() for part in result)
        return result.half()
