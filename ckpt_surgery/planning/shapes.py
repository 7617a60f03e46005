"""Run a model on shapes: no tensor that depends on weights holds data, and every tensor has its true size.

Floats that come from parameters or from float inputs are torch's fake tensors. Integers, masks and what is computed
from them alone keep their values, so that code may read them: positions, lengths, padding, image grids. Code that
reads what weights decide, such as the experts that a router chose, gets values drawn at random.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from ckpt_surgery.errors import NotOnShapes, PlanningError
from ckpt_surgery.planning.known_results import KnownResults
from ckpt_surgery.planning.model_copy import Copies
from ckpt_surgery.runtime.tools.containers import tensors
from ckpt_surgery.runtime.tools.tensors import is_differentiable, is_wrapper
from ckpt_surgery.text import error_line
from ckpt_surgery.torch_names import (
    CPU_ATTENTION,
    EFFICIENT_ATTENTION,
    EXACT_UPSAMPLES,
    FLASH_ATTENTION,
    GROUPED_MM,
    UNSAFE_VIEW,
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    TorchDispatchMode,
    disable_current_modes,
    tree_map_only,
)

_MOST_ELEMENTS = 4096
"""A float tensor made from no other holds values up to this size: constants and tables of frequencies."""
_MOST_BYTES = 2**26
_MOST_FLOAT_BYTES = 2**24
"""No tensor above these sizes is given values."""
_ATEN = torch.ops.aten
_TO_NUMPY = (Tensor.numpy, Tensor.__array__)
_RAND = _ATEN.rand.default
_RNN_LAYER = _ATEN.mkldnn_rnn_layer.default
_RNN_LAYER_BACKWARD = _ATEN.mkldnn_rnn_layer_backward.default
_LEAVES_MEMORY = frozenset(
    ("aten.empty", "aten.empty_like", "aten.empty_strided", "aten.new_empty", "aten.new_empty_strided")
)
_RESIZES = frozenset(
    (
        *EXACT_UPSAMPLES,
        _ATEN.upsample_nearest2d.default,
        _ATEN.upsample_nearest2d_backward.default,
        _ATEN.upsample_nearest3d.default,
        _ATEN.upsample_bilinear2d.default,
        _ATEN.upsample_bilinear2d_backward.default,
        _ATEN.upsample_bicubic2d.default,
        _ATEN.upsample_trilinear3d.default,
    )
)
"""Operators whose result has the memory format of their input. Backwards not listed give contiguous results."""
_VIEWS = frozenset((_ATEN.view.default, UNSAFE_VIEW))
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_BATCH_NORM = _ATEN.native_batch_norm.default
_BATCH_NORM_BACKWARD = _ATEN.native_batch_norm_backward.default
_NOT_READ = (
    FLASH_ATTENTION,
    EFFICIENT_ATTENTION,
    _ATEN.native_dropout.default,
    _ATEN.max_pool2d_with_indices.default,
    _ATEN.max_pool3d_with_indices.default,
    _ATEN.adaptive_max_pool2d.default,
    _ATEN.adaptive_max_pool3d.default,
    _RNN_LAYER,
)
"""Operators whose integers and masks nearly all code leaves to their backward; the first two run on CUDA alone."""
_OF_ONE_DTYPE = frozenset((_ATEN.mm.default, _ATEN.bmm.default, _ATEN.addmm.default, _ATEN.baddbmm.default))
"""Operators that do not take tensors of several dtypes; on shapes torch does not check."""
DECIDED_BY_VALUES = (DataDependentOutputException, DynamicOutputShapeException)


class UsesOriginal(Exception):
    """A step of a copy uses a parameter of the model itself."""


class ShapesOnly(TorchDispatchMode):
    """A mode in which operators on tensors without data run on shapes alone, and large new tensors hold none.

    Inside, `Module.to` converts parameters in place as it does those with data, even if a graph holds them. `drawn`
    counts the operators whose result was made of values drawn at random, because code may read it. `copies` holds the
    parts of the copy that is to run, by the ids of those of the original, which must outlive this mode.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.drawn = 0
        self.copies: dict[int, Any] = {}
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._known = KnownResults(self._fake)
        self._swaps: list[Callable[[Tensor, Tensor], None]] = []  # by each entry; it may be entered several times

    def __enter__(self) -> Any:
        self._swaps.append(torch.utils.swap_tensors)
        torch.utils.swap_tensors = partial(_convert, torch.utils.swap_tensors)
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *raised: Any) -> None:
        torch.utils.swap_tensors = self._swaps.pop()
        super().__exit__(*raised)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(map(is_wrapper, types)):
            return NotImplemented
        options = dict(kwargs or {})
        given = list(tensors((*args, *options.values())))
        if any(self.copies.get(id(each), each) is not each and isinstance(each, nn.Parameter) for each in given):
            raise UsesOriginal
        if any(map(_is_shape, given)):
            return self._on_shapes(func, args, options, given)
        if given and all(map(_is_small, given)):
            result = _with_values(func, args, options)
            # such as a mask for each layer
            is_large = isinstance(result, Tensor) and is_differentiable(result) and not _is_small(result)
            return self.without_data(result) if is_large and not result._is_view() else result
        result = self._cached(func, args, options)
        made = list(tensors(result))
        may_hold = [each.numel() <= _MOST_ELEMENTS if is_differentiable(each) else _is_small(each) for each in made]
        if not given and made and all(may_hold):
            values = _with_values(func, args, options)
            if func is _RAND and values.numel() == 1:  # layer drop: no layer is to be dropped
                values.fill_(1 - torch.finfo(values.dtype).eps)
            return values
        return result

    def without_data(self, tensor: Tensor) -> Tensor:
        """Return a tensor like this one that holds no data; a parameter for a parameter."""
        if not isinstance(tensor, FakeTensor):
            return self._fake.from_tensor(tensor)
        with self._fake:
            new = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        return nn.Parameter(new, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else new

    def inputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Copy a model's arguments, float tensors without data and all else as it was.

        Raises NotOnShapes if one of them cannot be copied.
        """
        memo: dict[int, Any] = {}
        copied = {}
        for name, value in inputs.items():
            try:
                for tensor in tensors(value):
                    if id(tensor) not in memo and (is_differentiable(tensor) or isinstance(tensor, FakeTensor)):
                        memo[id(tensor)] = self.without_data(tensor)
                copied[name] = copy.deepcopy(value, memo)
            except Exception as error:  # whatever an object raises
                raise NotOnShapes(f"the argument {name.lstrip('*')} cannot be copied: {error_line(error)}") from error
        return copied

    def _cached(self, func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Return the result of an operator, known or computed."""
        key = self._known.key(func, args, options)
        if key is None:
            return self._computed(func, args, options)
        result = self._known.find(key, args[0])
        if result is None:
            result = self._computed(func, args, options)
            self._known.note(key, args, result)
        return result

    def _computed(self, func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        with self._fake:
            if func in _OF_ONE_DTYPE:
                dtypes = {str(arg.dtype).removeprefix("torch."): None for arg in args if isinstance(arg, Tensor)}
                if len(dtypes) > 1:
                    kinds = " and ".join(dtypes)
                    raise RuntimeError(f"{func._overloadpacket} takes tensors of one dtype, and not of {kinds}")
            if func is GROUPED_MM:  # on shapes torch takes only bfloat16, but its kernels take more
                sides = [torch.empty_strided(side.shape, side.stride(), dtype=torch.bfloat16) for side in args[:2]]
                product: Tensor = GROUPED_MM(*sides, *args[2:], **options)
                return torch.empty_strided(product.shape, product.stride(), dtype=args[0].dtype)
            result = func(*args, **options)
            if func is _RNN_LAYER:  # run once on zeros too: only the operator knows the size of its workspace
                with disable_current_modes():
                    zeros = [torch.zeros(a.shape, dtype=a.dtype) if isinstance(a, Tensor) else a for a in args]
                    workspace = func(*zeros, **options)[-1]
                return *result[:-1], torch.empty(workspace.shape, dtype=workspace.dtype)
            if func is _RNN_LAYER_BACKWARD:  # on shapes the gradients of both biases are one tensor
                return *result[:4], torch.empty_like(result[4]), *result[5:]
            if func is CPU_ATTENTION:  # on shapes torch 2.11 takes its sums for float32, whatever the dtype
                return result[0], torch.empty_like(result[1], dtype=torch.promote_types(args[0].dtype, torch.float32))
            if func is _BATCH_NORM:  # on shapes torch takes any order of the input; its kernel, channels last alone
                shape, last = result[0].shape, _CHANNELS_LAST.get(result[0].ndim, torch.contiguous_format)
                ordered = result[0].is_contiguous(memory_format=last) and not result[0].is_contiguous()
                laid_out = last if ordered else torch.contiguous_format
                return torch.empty(shape, dtype=result[0].dtype, memory_format=laid_out), *result[1:]
            if func is _BATCH_NORM_BACKWARD and result[0] is not None:
                return _as_suggested(result[0], args[1]), *result[1:]
            if func in _VIEWS and 1 in args[0].shape:  # on shapes the strides of dimensions of one element differ
                source = args[0]
                with disable_current_modes():
                    meta = torch.empty_strided(source.shape, source.stride(), device="meta")
                    strides = meta.view(result.shape).stride()
                same = strides == result.stride()
                return result if same else source.as_strided(result.shape, strides, source.storage_offset())
            return _as_suggested(result, args[0]) if func in _RESIZES else result

    def _on_shapes(self, func: Any, args: tuple[Any, ...], options: dict[str, Any], given: list[Tensor]) -> Any:
        try:
            result = self._cached(func, args, options)
        except DECIDED_BY_VALUES:
            if not all(map(_is_small, given)):
                raise
            return self._with_drawn_values(func, args, options)
        if func in _NOT_READ:
            return result
        made = list(tensors(result))
        schema = func._schema
        makes_new = not schema.is_mutable and all(value.alias_info is None for value in schema.returns)
        if makes_new and not all(map(is_differentiable, made)) and all(map(_is_small, (*given, *made))):
            values = self._with_drawn_values(func, args, options)  # integers and masks are taken from these
            if isinstance(result, Tensor):
                return result if is_differentiable(result) else values
            pairs = zip(values, result, strict=True)
            return type(result)(shape if is_differentiable(shape) else value for value, shape in pairs)
        return result

    def _with_drawn_values(self, func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        self.drawn += 1
        return func(*tree_map_only(Tensor, drawn, args), **tree_map_only(Tensor, drawn, options))


class ValuesForNumpy(TorchFunctionMode):
    """A mode in which tensors without data become arrays of drawn values, as detection models' matchers need."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _TO_NUMPY and _is_shape(args[0]):
            args = (drawn(args[0].detach()), *args[1:])
        return func(*args, **(kwargs or {}))


def drawn(tensor: Tensor) -> Tensor:
    """Return a tensor of this shape and dtype with values; itself if it has values.

    Floats are drawn between 0 and 1, all else is 0. Equal shapes get equal values, so that a recompute reads what its
    forward read.
    """
    if not _is_shape(tensor):
        return tensor
    if tensor.is_floating_point():
        return torch.rand(tensor.shape, generator=torch.Generator().manual_seed(0)).to(tensor.dtype)
    return torch.zeros(tensor.shape, dtype=tensor.dtype)


def _convert(swap: Callable[[Tensor, Tensor], None], parameter: Tensor, new: Tensor) -> None:
    """Convert a parameter without data in place, which torch would refuse or swap; leave any other to `swap`."""
    if isinstance(parameter, FakeTensor):
        parameter.data = new.detach()
    else:
        swap(parameter, new)


def _as_suggested(result: Tensor, source: Tensor) -> Tensor:
    """Lay out a result in the memory format that kernels suggest for `source`; on shapes, torch keeps stride order.

    That is channels last by `is_channels_last_strides` in c10/core/MemoryFormat.h, where, unlike in `is_contiguous`,
    dimensions of one element count too.
    """
    laid_out, least = _CHANNELS_LAST.get(source.ndim, torch.contiguous_format), 0
    for dimension in (1, *range(source.ndim - 1, 1, -1), 0) if source.ndim in _CHANNELS_LAST else ():
        stride = source.stride(dimension)
        if stride < max(least, 1) or (dimension == 0 and least == source.stride(1)):
            laid_out = torch.contiguous_format
        least = stride * max(source.shape[dimension], 1)
    return torch.empty(result.shape, dtype=result.dtype, memory_format=laid_out)


def _with_values(func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Run an operator on values; memory that it leaves unset becomes zero, so that code may read it."""
    result = func(*args, **options)
    return result.zero_() if str(func._overloadpacket) in _LEAVES_MEMORY else result


def shapes_of(model: nn.Module, mode: ShapesOnly, copies: dict[int, Any] | None = None) -> nn.Module:
    """Copy `model` without the data of its parameters and float tensors. The model is only read.

    `copies` takes the copies of its parts, by the ids of the originals. Raises PlanningError if it is not a module,
    has no step to run, or cannot be copied.
    """
    name = type(model).__name__
    if not isinstance(model, nn.Module):
        raise PlanningError(f"the model is of type {name}: give a torch.nn.Module")
    if torch.is_inference_mode_enabled():
        raise PlanningError(f"{name} has no backward in torch.inference_mode: call this outside of it")
    if any(map(is_lazy, model.parameters())):
        raise PlanningError(f"{name} has parameters without a shape: run one forward first")
    memo = {} if copies is None else copies
    try:
        for module in model.modules():  # gradients are left out
            for value in (*module._parameters.values(), *module._buffers.values(), *vars(module).values()):
                held = isinstance(value, Tensor) and (is_differentiable(value) or isinstance(value, FakeTensor))
                if held and id(value) not in memo:
                    memo[id(value)] = mode.without_data(value)
        return Copies(memo).model(model)
    except Exception as error:  # whatever an attribute raises
        raise NotOnShapes(f"{name} cannot be copied{_uncopied(model)}: {error_line(error)}") from error


def _uncopied(model: nn.Module) -> str:
    """Name the first attribute of a model that cannot be copied, as a clause; empty if each one can."""
    modules = dict(model.named_modules())
    whole = {id(module): module for module in modules.values()}
    for name, module in modules.items():
        for attribute, value in (vars(module) | module._buffers).items():
            try:
                copy.deepcopy(value, dict(whole))
            except Exception:  # as above
                if attribute != "_buffers":
                    return f", because of its attribute {f'{name}.{attribute}' if name else attribute}"
    return ""


def _is_shape(tensor: Tensor) -> bool:
    """Tell whether only a tensor's shape counts: it has no data, or is a parameter, whose data has no meaning here."""
    return isinstance(tensor, (FakeTensor, nn.Parameter))


def _is_small(tensor: Tensor) -> bool:
    return tensor.numel() * tensor.itemsize <= (_MOST_FLOAT_BYTES if is_differentiable(tensor) else _MOST_BYTES)
