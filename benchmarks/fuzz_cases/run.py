"""One training of a case: without checkpointing, with a surgery, or with torch's own checkpointing."""

from __future__ import annotations

import pickle
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.fuzz_cases.case import SCENARIOS, Case
from benchmarks.fuzz_cases.loops import Note, Training
from benchmarks.fuzz_cases.model import Feature, FuzzBlock
from benchmarks.fuzz_cases.snapshot import Leaves, attribute_names, leaves_of, model_leaves
from ckpt_surgery.errors import SurgeryWarning
from ckpt_surgery.runtime.offload.disk_transport import DiskTransport
from ckpt_surgery.runtime.offload.host_transport import HostTransport
from ckpt_surgery.runtime.offload.offloader import Offloader, Transport
from ckpt_surgery.runtime.surgery import checkpointing
from ckpt_surgery.runtime.surgery.options import SurgeryOptions
from ckpt_surgery.runtime.surgery.wrap import wrap_blocks
from tests.runtime.late_copies import Deferred

Treatment = Callable[[nn.Module, Case], Callable[[], None]]
"""Changes a model before its training; returns what takes that back."""


@dataclass(eq=False)
class Run:
    """The results of one training of a case: notes on the way, the final state, and the error that ended it early.

    `outside` is state that no recompute puts back, `warning` the first SurgeryWarning that came in a step, and `steps`
    the number of the last step.
    """

    notes: list[Note] = field(default_factory=list)
    state: Leaves = field(default_factory=dict)
    outside: Leaves = field(default_factory=dict)
    error: Exception | None = None
    warning: str | None = None
    steps: int = 0


def untreated(model: nn.Module, case: Case) -> Callable[[], None]:
    """Leave the model without checkpointing, as the reference."""
    return lambda: None


def operated(model: nn.Module, case: Case) -> Callable[[], None]:
    """Apply `wrap_blocks` with the options of the case; return what undoes it."""
    options: Any = {"save": [case.save], "save_offload": case.offload is not None} if case.save else {}
    with patch.object(checkpointing, "_offloader", partial(_offloader, case)):
        surgery = wrap_blocks(
            model,
            use_reentrant=case.reentrant,
            offload=case.offload and "cpu",
            every_n=case.every_n,
            first=case.first or None,
            **options,
        )
    return surgery.undo


def _offloader(case: Case, options: SurgeryOptions) -> Offloader | None:
    """Return the offloader of a case, for which no tensor is too small, with the store that the case says."""
    if options.offload is None:
        return None
    transport: Transport = DiskTransport() if case.offload == "disk" else HostTransport()
    if case.offload == "late":
        transport = Deferred(case.seed if case.seed % 4 else None)
    return Offloader(transport, minimum_bytes=0, in_flight=1 + case.seed % 3)


def checkpointed(model: nn.Module, case: Case) -> Callable[[], None]:
    """Checkpoint the same blocks with torch's own function, and nothing else; return what undoes it."""
    layers: Any = model.layers
    treated = list(dict.fromkeys(layer for place, layer in enumerate(layers) if is_treated(case, place)))
    for layer in treated:
        layer.forward = partial(_own_checkpoint, type(layer).forward.__get__(layer), layer)

    def restore() -> None:
        for layer in treated:
            vars(layer).pop("forward", None)

    return restore


def is_treated(case: Case, place: int) -> bool:
    """Tell whether the block at a place of its stack is checkpointed."""
    return place % case.every_n == 0 and (not case.first or place < case.first)


def _own_checkpoint(forward: Callable[..., Any], layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
    if not (layer.training and torch.is_grad_enabled()):
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)


def train(case: Case, treatment: Treatment = untreated) -> Run:
    """Train the model of a case from its seed. An error of the training is part of the result."""
    run = Run()
    _seed(case.seed)
    features = case.make_features()
    model = case.make_model(features)
    attributes = attribute_names(model)
    treat = partial(treatment, model, case)
    rng = random.Random(f"train {case.seed}")
    training = Training(model, features, rng, treat, lambda: None, case.late, case.blocks, run.notes)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", SurgeryWarning)
        try:
            training.undo = treat()
            added = attribute_names(model) - attributes
            _seed(case.seed + 1)
            SCENARIOS[case.scenario](training)
            _note_state(run, model, features, added)
        except Exception as error:
            run.error = error
    run.steps = training.step_number
    run.warning = next((str(each.message) for each in caught if FuzzBlock.__name__ in str(each.message)), None)
    return run


def _seed(seed: int) -> None:
    """Seed the global generators. `torch.manual_seed` would format a traceback for each device that is not there."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed % 2**32)


def _note_state(run: Run, model: nn.Module, features: list[Feature], added: frozenset[tuple[str, str]]) -> None:
    """Note what there is after a training: the model, what features keep, and the global generators."""
    run.state, run.outside = model_leaves(model, added)
    for feature in features:
        for key, value in vars(feature).items():
            if not key.startswith("_") and key not in feature.unjudged:
                leaves = run.state if key in feature.strict else run.outside
                leaves.update(leaves_of(value, f"{type(feature).__name__}.{key}"))
    run.state["torch generator"] = torch.get_rng_state()
    run.state["python generator"] = random.getstate()
    run.state["numpy generator"] = pickle.dumps(numpy.random.get_state())
