"""Replay the call of an operator without its kernel, its graph node or a dispatch mode.

torch discards the graph of a recompute: of each call it only needs the tensors that are saved for its backward, in
their order. The first call of a form shows which of its arguments, views of them and results these are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ckpt_surgery.runtime.selective.operator_result import memory_of
from ckpt_surgery.runtime.selective.policies import Choice, arguments_read
from ckpt_surgery.torch_names import innermost_transform, saved_tensors_hooks_now

_STRIDED = torch.strided
OTHER = "other"
"""The plan of calls that run no operator of the policy."""
BY_MODE = "by mode"
"""The plan of calls whose results only a dispatch mode around them can keep."""
_VALUES = (int, float, bool, str, type(None), torch.dtype, torch.device)  # arguments that a form has as they are


_Source = Literal["argument", "view", "result"]
"""The origin of a saved tensor."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The way to replay calls of one form.

    `saved` are the tensors that the call saves, in their order: an argument, a view of one by shape, strides and
    offset, or a result by its index. `differentiable` says which results require gradient, `single` that there is
    one, and `read` how many arguments are only read.
    """

    operator: Any
    choices: tuple[Choice, ...]
    flops: int
    saved: tuple[tuple[_Source, Any, Any], ...]
    differentiable: tuple[bool, ...]
    single: bool
    read: int | None

    @classmethod
    def of(
        cls,
        saved: Sequence[Tensor],
        output: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        operator: Any,
        choices: tuple[Choice, ...],
        flops: int,
    ) -> Replay | str:
        """Return the replay for calls like this one, which took `flops` operations; `BY_MODE` if there is none."""
        results = [output] if isinstance(output, Tensor) else list(output)
        if not all(type(each) is Tensor and not each.is_complex() for each in results):
            return BY_MODE
        arguments: list[tuple[int | str, Tensor]] = [(i, a) for i, a in enumerate(args) if isinstance(a, Tensor)]
        arguments += [(name, a) for name, a in kwargs.items() if isinstance(a, Tensor)]
        if {memory_of(each) for each in results} & {memory_of(a) for _, a in arguments}:
            return BY_MODE
        found: list[tuple[_Source, Any, Any]] = []
        for tensor in saved:
            if type(tensor) not in (Tensor, nn.Parameter):
                return BY_MODE
            source = next(
                ((p, a) for p, a in arguments if memory_of(a) == memory_of(tensor) and a.dtype == tensor.dtype), None
            )
            same = next((i for i, each in enumerate(results) if _geometry(each) == _geometry(tensor)), None)
            if source is not None:
                place, argument = source
                if _geometry(argument) == _geometry(tensor):
                    found.append(("argument", place, None))
                else:
                    offset = tensor.storage_offset() - argument.storage_offset()
                    found.append(("view", place, (tuple(tensor.shape), tensor.stride(), offset)))
            elif same is not None:
                found.append(("result", same, None))
            else:
                return BY_MODE
        needs = tuple(each.requires_grad for each in results)
        return cls(operator, choices, flops, tuple(found), needs, isinstance(output, Tensor), arguments_read(operator))

    def again(self, kept: Sequence[Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the kept results as the call did, and save what it saved."""
        if self.saved and (hooks := saved_tensors_hooks_now(True)) is not None:
            pack = hooks[0]
            for source, place, form in self.saved:
                if source == "result":
                    pack(kept[place])
                    continue
                tensor = args[place] if type(place) is int else kwargs[place]
                if source == "view":
                    shape, strides, offset = form
                    tensor = tensor.as_strided(shape, strides, tensor.storage_offset() + offset)
                pack(tensor)
        results = [
            tensor.requires_grad_() if needs else tensor
            for tensor, needs in zip(kept, self.differentiable, strict=False)
        ]
        return results[0] if self.single else tuple(results)


def form_of(operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return a key that is equal for calls that save the same tensors; None if that cannot be told."""
    if innermost_transform() is not None:  # tensors in one look plain, and have no memory of their own
        return None
    grad = torch.is_grad_enabled()
    form: list[Any] = [id(operator), grad]
    for value in (*args, *kwargs.values()) if kwargs else args:
        kind = type(value)
        if kind is Tensor or kind is nn.Parameter:
            if value.layout is not _STRIDED or value.is_nested:
                return None
            form += (value.shape, value.stride(), value.dtype, value.device, grad and value.requires_grad)
        elif kind in _VALUES:
            form.append(value)
        elif kind in (list, tuple) and all(type(item) in _VALUES for item in value):
            form.append(tuple(value))
        else:
            return None
    return (*form, *kwargs) if kwargs else tuple(form)


def _geometry(tensor: Tensor) -> Any:
    return memory_of(tensor), tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()
