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
AUTOCAST_DTYPE = torch.bfloat16
"""The dtype in which autocast computes."""
WIDE_DTYPES = (torch.float32, torch.float64)
"""The dtypes that are cast; all others stay."""
_CONVOLUTIONS = (torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default)


@contextmanager
def in_precision(model: nn.Module, precision: Precision | None) -> Iterator[None]:
    """Run the model in this precision inside the `with`, and restore it on exit; None changes nothing.

    Cast copies stand in for parameters and buffers. In float16 on a CPU, convolutions are computed in float32
    and rounded: torch's own take up to a hundred times as long.
    """
    if precision is None:
        yield
    elif precision is Precision.AUTOCAST:
        device = next((parameter.device.type for parameter in model.parameters()), "cpu")
        with torch.autocast(device, dtype=AUTOCAST_DTYPE):
            yield
    else:
        slow = any(isinstance(m, ConvNd) and m.weight.device.type == "cpu" for m in model.modules())
        wide = precision is Precision.FLOAT16 and slow
        with _cast(model, DTYPES[precision]), _WideConvolutions() if wide else nullcontext():  # type: ignore[no-untyped-call]
            yield


def autocast_of(module: nn.Module) -> tuple[bool, torch.dtype | None]:
    """Tell whether autocast is on for the device of a module, and to which dtype it casts if so."""
    parameters = nn.Module.parameters(module)  # a module may override it with other arguments
    device = next((parameter.device.type for parameter in parameters), "cpu")
    enabled = torch.is_autocast_enabled(device)
    return enabled, torch.get_autocast_dtype(device) if enabled else None


def cast_to(value: Any, precision: Precision | None) -> Any:
    """Cast a tensor of a wide float dtype to a precision; return anything else as it is."""
    dtype = None if precision is None else DTYPES.get(precision)
    if dtype is None or not isinstance(value, Tensor) or value.dtype not in WIDE_DTYPES:
        return value
    return value.detach().to(dtype).requires_grad_(value.requires_grad)


@contextmanager
def _cast(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Replace parameters instead of writing to them: a cast in place would drop the hooks that others have on them."""
    stand_ins: dict[int, nn.Parameter] = {}
    with ExitStack() as stack:
        for module in model.modules():
            tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
            for table, name, tensor in [(each, *item) for each in tables for item in each.items()]:
                if tensor is None or tensor.dtype not in WIDE_DTYPES:
                    continue
                if isinstance(tensor, nn.Parameter) and id(tensor) not in stand_ins:
                    cast = tensor.detach().to(dtype)
                    stand_ins[id(tensor)] = nn.Parameter(cast, requires_grad=tensor.requires_grad)
                put_for(stack, table, name, stand_ins[id(tensor)] if id(tensor) in stand_ins else tensor.to(dtype))
        yield


class _WideConvolutions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that computes float16 convolutions on a CPU in float32, in which GPUs add up their terms as well."""

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
