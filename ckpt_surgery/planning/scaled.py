"""Estimate models that do not run on shapes: a tiny model runs a step with data, and its sizes are scaled.

A length in a tensor's shape that equals a field of the tiny model's configuration, its batch or its tokens becomes
what that is in the released model. The tiny model has few layers: what its blocks keep stands for all blocks.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ckpt_surgery.errors import CannotBuild, NotOnShapes
from ckpt_surgery.measure.arguments import call_arguments
from ckpt_surgery.measure.generators import random_state_kept, seed_all
from ckpt_surgery.measure.loss import loss_of
from ckpt_surgery.planning.allocations import Allocation, AllocationKind, StepAllocations
from ckpt_surgery.planning.explain import explanation_of
from ckpt_surgery.planning.explanation import Explanation
from ckpt_surgery.planning.step_meter import run_metered
from ckpt_surgery.planning.target import ReleasedModel
from ckpt_surgery.planning.training import ALONE, TrainingSetup
from ckpt_surgery.runtime.blocks.discovery import find_blocks
from ckpt_surgery.runtime.surgery.wrap import wrap_blocks
from ckpt_surgery.runtime.tools.containers import tensors
from ckpt_surgery.survey.target import SurveyTarget, TargetKind
from ckpt_surgery.tiny.configs import nested_configs
from ckpt_surgery.tiny.field_rules import names_token
from ckpt_surgery.tiny.inputs import accepted_inputs
from ckpt_surgery.tiny.model import TinyModel, tiny_model
from ckpt_surgery.tiny.sizes import WIDTH

_BATCH, _TOKENS = 3, 23
"""Sizes of the tiny step that no width of a tiny model has."""
_OTHER_WIDTHS = (56, 48, 40, 32, 24)
_HIDDEN = ("hidden_size", "d_model", "n_embd", "dim", "embed_dim")
_MOST_TIMES = 8
"""A length may be up to this many times a known one, as queries, keys and values from one product are."""
_SMALLEST = 16
"""A length below this is not taken for a multiple of a known one."""


@dataclass(frozen=True, slots=True)
class TinyStandIn:
    """A tiny model with data, and the arguments of a step.

    `lengths` maps its sizes to those of the released model; `outside` maps sizes that occur outside blocks only, such
    as that of the vocabulary: inside, the same number means something else.
    """

    model: Any
    inputs: Mapping[str, Any]
    lengths: Mapping[int, int]
    outside: Mapping[int, int]

    @classmethod
    def of(cls, model_class: Any, config: Any, tokens: int, batch: int, dtype: torch.dtype) -> TinyStandIn | None:
        """Make a tiny model of a class, with inputs, for a released one of `config`.

        `batch` and `tokens` are the samples of the released model, and the length of each. Return None if no tiny form
        trains, or it takes floats: how their sizes follow from a configuration is not known.
        """
        try:
            tiny = _with_distinct_widths(model_class, config)
            tiny.model.to(dtype)
            with random_state_kept():
                seed_all(0)
                inputs = accepted_inputs(tiny.model, batch=_BATCH, length=_TOKENS)
        except CannotBuild:
            return None
        if any(tensor.is_floating_point() for tensor in tensors(inputs)):
            return None
        lengths, outside = {_BATCH: batch, _TOKENS: tokens}, dict[int, int]()
        for field in _fields(tiny.config, config):
            known = outside if "vocab" in field.name else lengths
            known[field.old] = max(field.new, known.get(field.old, 0))
        return cls(tiny.model.train(), inputs, lengths, outside)

    def scaled_step(self, released: Any) -> StepAllocations:
        """Meter a step of the tiny model as it stands, and scale its allocations to the released model's sizes."""
        rates = {name: module.p for name, module in released.named_modules() if isinstance(module, nn.Dropout)}
        for name, module in self.model.named_modules():
            if isinstance(module, nn.Dropout):
                module.p = rates.get(name, module.p)
        with random_state_kept(), _WithoutAttentionDropout():
            step = run_metered(self.model, call_arguments(self.inputs), loss_of)
        self.model.zero_grad()
        blocks = tuple(f"{block.name}." for block in find_blocks(self.model))
        repeats = len(find_blocks(released)) / len(blocks) if blocks else 1.0
        trained = sum(p.numel() * p.itemsize for p in released.parameters() if p.requires_grad)
        gradients = sum(each.bytes for each in step.allocations if each.kind is AllocationKind.GRADIENT)
        outside = {**self.lengths, **self.outside}

        def scaled(each: Allocation) -> Allocation:
            if each.kind is AllocationKind.GRADIENT:
                return replace(each, bytes=round(each.bytes * trained / gradients))
            is_inside = f"{each.place.module}.".startswith(blocks)
            shape = tuple(_scaled_length(size, self.lengths if is_inside else outside) for size in each.shape)
            held = round(each.bytes * (prod(shape) / (prod(each.shape) or 1)))
            if is_inside and each.kind is AllocationKind.KEPT:
                held = round(held * repeats)
            return replace(each, shape=shape, bytes=held)

        allocations = tuple(map(scaled, step.allocations))
        kept = sum(each.bytes for each in allocations if each.kind is AllocationKind.KEPT)
        return replace(step, allocations=allocations, kept_bytes=kept, forward_flops=0, backward_flops=0, work=())


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of a configuration, with the path of parts to it, and its tiny (`old`) and released (`new`) value."""

    path: tuple[str, ...]
    name: str
    old: int
    new: int


def explain_scaled(
    target: SurveyTarget,
    why: NotOnShapes,
    *,
    tokens: int | None,
    batch: int,
    dtype: torch.dtype,
    training: TrainingSetup = ALONE,
) -> tuple[ReleasedModel, Explanation, Explanation]:
    """Return the model that a target stands for, and estimates for it without checkpointing and with it.

    Raises `why`, which kept the model from running on shapes, if it cannot be estimated: a factory, a model that takes
    more than text, one rank of several, or the time on a device. Raises SurgeryError if no block can be checkpointed.
    """
    if target.kind is TargetKind.FACTORY or training.sharding or training.device:
        raise why
    released = ReleasedModel.without_inputs(target, tokens=tokens, dtype=dtype)
    stand_in = TinyStandIn.of(type(released.model), released.model.config, released.tokens, batch, dtype)
    if stand_in is None:
        raise why
    assumption = (
        f"{why.reason}: so a tiny model ran with data, and its sizes were scaled by their shapes. This is an estimate."
    )

    def explained() -> Explanation:
        step = stand_in.scaled_step(released.model)
        return replace(explanation_of(released.model, step, 0, training), assumptions=(assumption,))

    without = explained()
    for model in (released.model, stand_in.model):
        wrap_blocks(model, self_check="never")
    return released, without, explained()


class _WithoutAttentionDropout(TorchFunctionMode):
    """A mode in which attention has no dropout: for it, CUDA needs no matrix of weights, but a CPU does."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if func is functional.scaled_dot_product_attention and "dropout_p" in options:
            options["dropout_p"] = 0.0
        return func(*args, **options)


def _with_distinct_widths(model_class: Any, config: Any) -> TinyModel:
    """Make a tiny model whose widths differ where the released ones do, as far as it builds. Raises CannotBuild."""
    tiny = tiny_model(model_class, config)
    same: dict[int, list[_Field]] = defaultdict(list)
    for field in _fields(tiny.config, config):
        if field.old == WIDTH:
            same[field.new].append(field)
    hidden = next((new for new, fields in same.items() if any(field.name in _HIDDEN for field in fields)), None)
    used = {field.old for field in _fields(tiny.config, config)}
    free = [width for width in _OTHER_WIDTHS if width not in used]
    for fields in (fields for new, fields in same.items() if new != hidden):
        if not free:
            break
        changed = copy.deepcopy(tiny.config)
        for field in fields:
            setattr(reduce(getattr, field.path, changed), field.name, free[0])
        with suppress(CannotBuild):
            tiny = tiny_model(model_class, changed)
            free.pop(0)
    return tiny


def _scaled_length(size: int, lengths: Mapping[int, int]) -> int:
    """Scale a length of a tiny tensor to the released model; return it unchanged if nothing is known of it."""
    if size in lengths:
        return lengths[size]
    tokens = lengths[_BATCH] * lengths[_TOKENS]
    known = {**lengths, _BATCH * _TOKENS: tokens, _BATCH * (_TOKENS - 1): tokens - lengths[_BATCH]}
    for old, new in sorted(known.items(), reverse=True):
        times, rest = divmod(size, old)
        if not rest and old >= _SMALLEST and times <= _MOST_TIMES:
            return new * times
    if size in (_TOKENS - 1, _TOKENS + 1):
        return lengths[_TOKENS] + size - _TOKENS
    return size


def _fields(tiny: Any, released: Any, path: tuple[str, ...] = ()) -> Iterator[_Field]:
    """Yield the fields that are sizes in both configurations and differ."""
    for name, value in vars(tiny).items():
        other = getattr(released, name, None)
        if type(value) is not int or type(other) is not int or names_token(name):
            continue
        if min(value, other) > _BATCH and value != other:
            yield _Field(path, name, value, other)
    parts = dict(nested_configs(released))
    for name, part in nested_configs(tiny):
        if name in parts:
            yield from _fields(part, parts[name], (*path, name))
