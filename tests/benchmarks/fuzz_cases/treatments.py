"""Treatments of a model that are wrong in one way each, for the judge to tell."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.fuzz_cases.case import Case
from ckpt_surgery.errors import SurgeryError

Forward = Callable[..., Any]


def replacing(change: Callable[[Forward], Forward]) -> Callable[[nn.Module, Case], Callable[[], None]]:
    """The treatment that gives each block another forward."""

    def treat(model: nn.Module, case: Case) -> Callable[[], None]:
        layers: Any = model.layers
        for layer in dict.fromkeys(layers):
            layer.forward = change(layer.forward)
        return lambda: None

    return treat


def without_gradient(forward: Forward) -> Forward:
    """Loses the gradient of what the block makes."""
    return lambda hidden, *args, **kwargs: forward(hidden, *args, **kwargs).detach() + hidden - hidden.detach()


def drawing_again(forward: Forward) -> Forward:
    """Draws other numbers in the recompute."""
    return partial(checkpoint, forward, use_reentrant=False, preserve_rng_state=False)


def running_twice(forward: Forward) -> Forward:
    """Leaves in the recompute what the block writes."""
    return partial(checkpoint, forward, use_reentrant=False)


def drawing_more(forward: Forward) -> Forward:
    """Draws a number that nobody needs."""

    def run(*args: Any, **kwargs: Any) -> Any:
        result = forward(*args, **kwargs)
        torch.rand(())
        return result

    return run


def failing(forward: Forward) -> Forward:
    """Raises."""

    def run(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("layer 3 of 4 is missing")

    return run


def refusing(forward: Forward) -> Forward:
    """Refuses each call."""

    def run(*args: Any, **kwargs: Any) -> Any:
        raise SurgeryError("FuzzBlock layers.1 cannot be checkpointed: 3 reasons")

    return run


def refusing_without_a_name(forward: Forward) -> Forward:
    """Refuses each call, and does not say where."""

    def run(*args: Any, **kwargs: Any) -> Any:
        raise SurgeryError("no")

    return run


def refusing_late(forward: Forward) -> Forward:
    """Is wrong in the first call, and refuses the second."""
    calls: list[int] = []

    def run(hidden: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(0)
        if len(calls) > 1:
            raise SurgeryError("something is wrong")
        return forward(hidden, *args, **kwargs) * 1.5

    return run


def endless(forward: Forward) -> Forward:
    """Runs the block again and again."""

    def run(*args: Any, **kwargs: Any) -> Any:
        while True:
            forward(*args, **kwargs)

    return run


def scaling(model: nn.Module, case: Case, *, by: float) -> Callable[[], None]:
    """Scales the gradients of one parameter."""
    layers: Any = model.layers
    layers[0].up.weight.register_hook(lambda gradient: gradient * by)
    return lambda: None


def zero_gradients(model: nn.Module, case: Case) -> Callable[[], None]:
    """Gives zeros to all parameters that would have no gradient."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return lambda: None
