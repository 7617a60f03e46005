"""Check the arguments of `verify`: those that allow no verdict are refused with a sentence that says what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ckpt_surgery.errors import VerifyError
from ckpt_surgery.measure.results import Level, Mode
from ckpt_surgery.measure.switch import Switch

Levels = Literal["all"] | Level | Sequence[Level]
Inputs = Mapping[str, Any] | Sequence[Any] | Tensor
"""The keyword arguments of a forward, the positional ones, or its only one."""
_POSITIONAL = "*"
"""The prefix of the keys of positional arguments."""


class VerifyOptions(TypedDict, total=False):
    """The options of `verify`, for functions that pass them on."""

    loss: Callable[[Any], Tensor] | None
    modes: Mode | Sequence[Mode]
    levels: Levels
    seed: int
    tolerance: float | None
    switch: Switch | None


def checked_model(model: Any) -> nn.Module:
    """Return the model if it can be verified. Raises VerifyError."""
    if not isinstance(model, nn.Module):
        raise VerifyError(f"the model is of type {type(model).__name__}: give a torch.nn.Module")
    name = type(model).__name__
    parameters = list(model.parameters())
    if isinstance(model, nn.DataParallel):
        raise VerifyError(f"{name} runs copies of its model: give model.module")
    if torch.is_inference_mode_enabled():
        raise VerifyError(f"{name} cannot be trained in torch.inference_mode: call this outside of it")
    if any(map(is_lazy, parameters)):
        raise VerifyError(f"{name} has parameters without a shape: run one forward first")
    if any(parameter.is_meta for parameter in parameters):
        raise VerifyError(f"{name} has parameters on the meta device: load or initialise them first, with to_empty")
    if not model.training:
        raise VerifyError(f"{name} is in evaluation mode, in which nothing is checkpointed: call model.train() first")
    if not any(parameter.requires_grad for parameter in parameters):
        raise VerifyError(f"no parameter of {name} requires gradient: there is nothing to train")
    return model


def checked_inputs(inputs: Any) -> dict[str, Any]:
    """Return the inputs by name, in a new dictionary for `call_arguments` to split. Raises VerifyError."""
    if isinstance(inputs, Mapping):
        return dict(inputs)
    if isinstance(inputs, Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, (tuple, list)):
        raise VerifyError(
            f"the inputs are of type {type(inputs).__name__}: give a dictionary of the forward's keyword arguments, a "
            "tuple of positional ones, or a tensor"
        )
    return {positional_key(index): value for index, value in enumerate(inputs)}


def positional_key(index: int) -> str:
    """Return the key of a positional argument among the inputs."""
    return f"{_POSITIONAL}{index}"


def call_arguments(inputs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Split inputs by name into positional and keyword arguments."""
    positional = tuple(value for name, value in inputs.items() if name.startswith(_POSITIONAL))
    return positional, {name: value for name, value in inputs.items() if not name.startswith(_POSITIONAL)}


def checked_names(names: Any, choices: tuple[Any, ...], what: str) -> tuple[Any, ...]:
    """Return the levels or modes that were asked for, in the order given. Raises VerifyError."""
    given = [names] if isinstance(names, str) else names
    if not isinstance(given, Iterable) or not (wanted := tuple(given)):
        raise VerifyError(f"no {what} to verify: give some of {', '.join(choices)}")
    for name in wanted:
        if name not in choices:
            raise VerifyError(f"unknown {what} {name!r}: give some of {', '.join(choices)}")
    return wanted
