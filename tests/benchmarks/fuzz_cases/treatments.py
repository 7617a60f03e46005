"""Treatments of a model, each wrong in one way, for the judge."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from benchmarks.fuzz_cases.case import Case
from benchmarks.fuzz_cases.run import is_treated
from ckpt_surgery.errors import SurgeryError

Forward = Callable[..., Any]


def replacing(change: Callable[[Forward], Forward]) -> Callable[[nn.Module, Case], Callable[[], None]]:
    """Return the treatment that replaces the forward of every block a case checkpoints."""

    def treat(model: nn.Module, case: Case) -> Callable[[], None]:
        layers: Any = model.layers
        for layer in dict.fromkeys(layer for place, layer in enumerate(layers) if is_treated(case, place)):
            layer.forward = change(layer.forward)
        return lambda: None

    return treat


def without_gradient(forward: Forward) -> Forward:
    """Lose the gradient of the block's result."""
    return lambda hidden, *args, **kwargs: forward(hidden, *args, **kwargs).detach() + hidden - hidden.detach()


def drawing_again(forward: Forward) -> Forward:
    """Draw other numbers in the recompute."""
    return partial(checkpoint, forward, use_reentrant=False, preserve_rng_state=False)


def running_twice(forward: Forward) -> Forward:
    """Recompute to the end without restoring what the block writes or comparing anything."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with set_checkpoint_early_stop(False):
            return checkpoint(forward, *args, use_reentrant=False, determinism_check="none", **kwargs)

    return run


def without(name: str) -> Callable[[Forward], Forward]:
    """Drop the arguments of a name."""

    def change(forward: Forward) -> Forward:
        names = list(getattr(forward, "__signature__", None).parameters)[1:]  # type: ignore[union-attr]

        def run(*args: Any, **kwargs: Any) -> Any:
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            return forward(**given | ({name: None} if name in given else {}))

        return run

    return change


def forgetting_on_error(forward: Forward) -> Forward:
    """Leave the generator elsewhere where a forward or a recompute raises."""

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return forward(*args, **kwargs)
        except BaseException:
            torch.default_generator.manual_seed(99)
            raise

    return partial(checkpoint, run, use_reentrant=False, preserve_rng_state=False)


def swallowing(forward: Forward) -> Forward:
    """Go on after any error."""

    def run(hidden: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return forward(hidden, *args, **kwargs)
        except BaseException:
            return hidden

    return run


def drawing_more(forward: Forward) -> Forward:
    """Draw a number that nobody needs."""

    def run(*args: Any, **kwargs: Any) -> Any:
        result = forward(*args, **kwargs)
        torch.rand(())
        return result

    return run


def failing(forward: Forward) -> Forward:
    def run(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("layer 3 of 4 is missing")

    return run


def refusing(forward: Forward) -> Forward:
    """Refuse each call."""

    def run(*args: Any, **kwargs: Any) -> Any:
        raise SurgeryError("FuzzBlock layers.1 cannot be checkpointed: 3 reasons")

    return run


def refusing_without_a_name(forward: Forward) -> Forward:
    """Refuse each call without naming the place."""

    def run(*args: Any, **kwargs: Any) -> Any:
        raise SurgeryError("no")

    return run


def wrong_and_refusing(model: nn.Module, case: Case, *, wrong: int, refusing: int) -> Callable[[], None]:
    """Give wrong results from a step on, and refuse in another."""
    layers: Any = model.layers
    calls: list[int] = []
    forward = layers[0].forward

    def run(hidden: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(0)
        if len(calls) > refusing:
            raise SurgeryError("FuzzBlock layers.0: something is wrong")
        return forward(hidden, *args, **kwargs) * (1.5 if len(calls) > wrong else 1)

    layers[0].forward = run
    return lambda: None


def scaling(model: nn.Module, case: Case, *, by: float) -> Callable[[], None]:
    """Scale the gradients of one parameter."""
    layers: Any = model.layers
    layers[0].up.weight.register_hook(lambda gradient: gradient * by)
    return lambda: None


def zero_gradients(model: nn.Module, case: Case) -> Callable[[], None]:
    """Give zeros to all parameters that would have no gradient."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return lambda: None
