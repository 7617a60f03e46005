"""Walk from the smallest form of a model to more careful ones, until one trains for a step."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PretrainedConfig

from ckpt_surgery.errors import CannotBuild
from ckpt_surgery.measure.restore import left_as_found
from ckpt_surgery.measure.step import loss_of
from ckpt_surgery.runtime.rng import random_state_kept, seed_all
from ckpt_surgery.tiny import families
from ckpt_surgery.tiny.catalog import model_classes
from ckpt_surgery.tiny.inputs import tiny_inputs
from ckpt_surgery.tiny.rules import STEPS
from ckpt_surgery.tiny.shrink import all_configs, tiny_config

LARGEST = 20_000_000
"""Parameters of the largest model that `tiny_model` builds."""


@dataclass(frozen=True)
class TinyModel:
    """A model that trains: `model(**inputs)` gives a finite loss or output, and its backward runs.

    `step` is the rung of the ladder on which it was found, `notes` say why the rungs before were no good.
    """

    model: Any
    inputs: dict[str, Any]
    config: PretrainedConfig
    step: int
    notes: tuple[str, ...] = field(default=())


def tiny_model(
    model_class: type,
    config: PretrainedConfig | type | None = None,
    *,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> TinyModel:
    """A small `model_class` with random weights, and inputs with which one training step of it works.

    `config` (default: the configuration class that `model_classes` names for the class, or its own) is shrunk by
    `tiny_config`. `options` are set on the result at every rung, on each of its configurations that has the
    attribute (on the outermost where none has). Weights and inputs follow from `seed`; the random number
    generators are left as found. No rung makes more
    than `LARGEST` parameters: that is seen on the meta device, before memory is spent. Raises CannotBuild where
    no rung gives a model whose forward and backward run with a finite result.
    """
    source = config if config is not None else _config_class(model_class)
    if source is None:
        raise CannotBuild(model_class.__name__, "configuration", "the class names no configuration class")
    notes: list[str] = []
    failure = CannotBuild(model_class.__name__, "configuration", "there are no rungs")
    step = 0
    while step < STEPS:
        try:
            with random_state_kept():
                seed_all(seed)
                return _built(model_class, source, step, seed, options or {}, tuple(notes))
        except CannotBuild as error:
            notes.append(f"rung {step}: {error.stage} raised {error.reason}")
            if error.reason.startswith("ImportError"):
                raise  # another size will not help
            step = STEPS - 1 if _alike(error, failure) and step < STEPS - 1 else step + 1
            failure = failure if failure.stage != "configuration" and error.stage == "size" else error
    raise failure


def _config_class(model_class: type) -> type | None:
    entry = model_classes().get(model_class.__name__)
    if entry is not None and entry.load() is model_class:
        return entry.config_class()
    own: type | None = getattr(model_class, "config_class", None)
    return own


def _alike(one: CannotBuild, other: CannotBuild) -> bool:
    """Whether two failures say the same, numbers apart."""
    return re.sub(r"\d+", "", one.reason) == re.sub(r"\d+", "", other.reason) and one.stage != "size"


def _built(
    model_class: Any, source: Any, step: int, seed: int, options: Mapping[str, Any], notes: tuple[str, ...]
) -> TinyModel:
    name, stage = model_class.__name__, "configuration"
    try:
        config = tiny_config(source, step=step)
        _set(config, {**families.CLASS_OPTIONS.get(name, {}), **options})
        stage = "size"
        size = _size(model_class, config)
        if size > LARGEST:
            raise ValueError(f"{size:,} parameters are more than {LARGEST:,}")
        stage = "construction"
        torch.manual_seed(seed)
        model = _made(model_class, config)
        stage = "inputs"
        inputs = tiny_inputs(model, seed=seed)
        stage = "training step"
        _train_once(model, inputs, seed)
    except CannotBuild:
        raise
    except Exception as error:  # models refuse in every way there is
        raise CannotBuild(name, stage, error) from None
    return TinyModel(model, inputs, config, step, notes)


def _size(model_class: Any, config: PretrainedConfig) -> int:
    """How many parameters the model would have; 0 where it cannot be made on the meta device."""
    try:
        with torch.device("meta"):
            return sum(p.numel() for p in _made(model_class, config).parameters())
    except NotImplementedError:  # a constructor that reads values; the configuration is small all the same
        return 0


def _made(model_class: Any, config: PretrainedConfig) -> Any:
    make = getattr(model_class, "_from_config", model_class)  # sets the attention implementation as users get it
    return make(copy.deepcopy(config))


def _set(config: PretrainedConfig, options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        parts = [part for part in all_configs(config) if hasattr(part, name)] or [config]
        for part in parts:
            setattr(part, name, value)


def _train_once(model: Any, inputs: Mapping[str, Any], seed: int) -> None:
    with left_as_found(model):
        model.train()
        torch.manual_seed(seed)
        loss = loss_of(model(**inputs))
        if not bool(torch.isfinite(loss)):
            raise ValueError(f"the loss is {float(loss.detach())}")
        loss.backward()  # type: ignore[no-untyped-call]
