"""One training of a case: without checkpointing, with a surgery, or with torch's own checkpointing."""

from __future__ import annotations

import inspect
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.fuzz_cases.case import Case
from benchmarks.fuzz_cases.snapshot import Leaves, attribute_names, leaves_of, model_leaves, numpy_state
from benchmarks.fuzz_cases.stores import moving_all
from benchmarks.fuzz_cases.training import Training
from ckpt_surgery.runtime.surgery.wrap import wrap_blocks

Treatment = Callable[[nn.Module, Case], Callable[[], None]]
"""Changes a model before its training; returns what takes that back."""

SelfCheck = Literal["first", "always", "never"] | int
"""How often `wrap_blocks` holds a recompute against its forward."""

_SELF_CHECK = "self_check"


@dataclass(eq=False)
class Run:
    """What one training of a case left: notes on the way, the state in the end, and the error that ended it early."""

    notes: list[tuple[str, Leaves]] = field(default_factory=list)
    state: Leaves = field(default_factory=dict)
    error: Exception | None = None


def untreated(model: nn.Module, case: Case) -> Callable[[], None]:
    """The reference: no checkpointing."""
    return lambda: None


def operated(model: nn.Module, case: Case, **options: Any) -> Callable[[], None]:
    """With `wrap_blocks`."""
    if case.save:
        options = {"save": case.save, "save_offload": case.offload is not None, **options}
    with moving_all(case):
        surgery = wrap_blocks(
            model,
            use_reentrant=case.mode == "reentrant",
            offload=case.offload and "cpu",
            every_n=case.every_n,
            **options,
        )
    return surgery.undo


def treatment_of(self_check: SelfCheck | None) -> Treatment:
    """`wrap_blocks` with this interval of its self-check, where it has one; with its default for None."""
    if self_check is None or _SELF_CHECK not in inspect.signature(wrap_blocks).parameters:
        return operated
    options: dict[str, Any] = {_SELF_CHECK: self_check}
    return partial(operated, **options)


def checkpointed(model: nn.Module, case: Case) -> Callable[[], None]:
    """With torch's own checkpointing of the same blocks in the same mode, and nothing else."""
    layers: Any = model.layers
    treated = [layer for place, layer in enumerate(layers) if place % case.every_n == 0]
    for layer in dict.fromkeys(treated):
        layer.forward = partial(_own_checkpoint, type(layer).forward.__get__(layer), case.mode == "reentrant", layer)
    return partial(_restore_forwards, treated)


def _restore_forwards(layers: list[nn.Module]) -> None:
    for layer in layers:
        vars(layer).pop("forward", None)


def _own_checkpoint(forward: Callable[..., Any], reentrant: bool, layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
    if not (layer.training and torch.is_grad_enabled()):
        return forward(*args, **kwargs)
    run = partial(forward, **kwargs) if reentrant else forward
    return checkpoint(run, *args, use_reentrant=reentrant, **({} if reentrant else kwargs))


def train(case: Case, treatment: Treatment = untreated) -> Run:
    """Train the model of a case from its seed. An error of the training is part of the result.

    Reentrant cases compute in float64: what only rounds differently stays within a narrow tolerance there.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if case.mode == "reentrant" else torch.float32)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _train(case, treatment)
    finally:
        torch.set_default_dtype(before)


def _train(case: Case, treatment: Treatment) -> Run:
    run = Run()
    _seed(case.seed)
    features = case.make_features()
    model = case.make_model(features)
    attributes = attribute_names(model)
    try:
        treat = partial(treatment, model, case)
        undo = treat()
        added = attribute_names(model) - attributes
        training = Training(model, features, random.Random(f"train {case.seed}"), treat, undo, run.notes)
        _seed(case.seed + 1)
        case.make_scenario().train(training)
        run.state = _state(model, features, added)
    except Exception as error:
        run.error = error
    return run


def _seed(seed: int) -> None:
    """Seed the global generators. `torch.manual_seed` would format a traceback for each device that is not there."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed % 2**32)


def _state(model: nn.Module, features: list[Any], added: frozenset[tuple[str, str]]) -> Leaves:
    """What there is after a training: the model, what features keep, and the global generators."""
    state = model_leaves(model, added)
    for feature in features:
        kept = {
            key: value
            for key, value in vars(feature).items()
            if not key.startswith("_") and key not in feature.unjudged
        }
        state.update(leaves_of(kept, type(feature).__name__))
    state["torch generator"] = torch.get_rng_state()
    state["python generator"] = random.getstate()
    state["numpy generator"] = numpy_state(numpy.random)
    return state
