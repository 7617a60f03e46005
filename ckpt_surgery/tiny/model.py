"""A tiny model that trains: the smallest form first, then more careful ones, until one trains for a step."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PretrainedConfig

from ckpt_surgery.errors import BuildStage, CannotBuild, OptionError
from ckpt_surgery.measure.generators import random_state_kept, seed_all
from ckpt_surgery.measure.loss import loss_of
from ckpt_surgery.measure.restore import model_state_kept
from ckpt_surgery.model_patches import family_tables
from ckpt_surgery.tiny.catalog import model_classes
from ckpt_surgery.tiny.configs import all_configs
from ckpt_surgery.tiny.dropout import set_dropout
from ckpt_surgery.tiny.inputs import tiny_inputs
from ckpt_surgery.tiny.memory import draw_marked, marked_memory
from ckpt_surgery.tiny.own_code import ValuesOfMeta, is_own_code, name_dtype
from ckpt_surgery.tiny.shrink import tiny_config
from ckpt_surgery.tiny.sizes import ATTEMPTS

_ATTENTION = "_attn_implementation"
MOST_PARAMETERS = 20_000_000
"""Parameters of the largest model that `tiny_model` builds."""


@dataclass(frozen=True)
class TinyModel:
    """A model that trains: `model(**inputs)` gives a finite loss or output, and its backward runs.

    `attempt` counts from 0, the smallest form; `failures` say why the attempts before it did not work.
    """

    model: Any
    inputs: dict[str, Any]
    config: PretrainedConfig
    attempt: int
    failures: tuple[CannotBuild, ...] = ()


def tiny_model(
    model_class: type,
    config: PretrainedConfig | type | None = None,
    *,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> TinyModel:
    """A small `model_class` with random weights, and inputs with which one training step of it works.

    `config` (default: the configuration class that `model_classes` names for the class, or the class's own) is shrunk
    by `tiny_config`; rates of dropout that are 0 become `dropout.RATE`. `options` are then set on each of its
    configurations that has the attribute, or on the outermost if none has. Weights and inputs follow from `seed`; the
    random number generators are left as they were. Models of more than `MOST_PARAMETERS` are not built: they are
    counted on the meta device, before any memory is spent.

    Raises:
        CannotBuild: no attempt gives a model whose forward and backward run with a finite result.
        OptionError: `model_class` is not a class.
    """
    if not isinstance(model_class, type):
        raise OptionError(f"model_class is {model_class!r}: give a class, such as transformers.LlamaForCausalLM")
    name = model_class.__name__
    source = config if config is not None else _config_class(model_class)
    if source is None:
        raise CannotBuild(name, BuildStage.CONFIGURATION, "the class names no configuration class")
    failures: list[CannotBuild] = []
    attempt = 0
    while attempt < ATTEMPTS:
        try:
            with random_state_kept():
                seed_all(seed)
                model, inputs, tiny = _built(model_class, source, attempt, seed, options or {})
            return TinyModel(model, inputs, tiny, attempt, tuple(failures))
        except CannotBuild as failure:
            if failure.missing_package:
                raise  # another size will not help
            repeated = bool(failures) and _same_failure(failure, _reported(failures))
            failures.append(failure)
            attempt = ATTEMPTS - 1 if repeated and attempt < ATTEMPTS - 1 else attempt + 1
    raise _reported(failures)


def _reported(failures: Sequence[CannotBuild]) -> CannotBuild:
    """The last failure; a later form that is too large says less than why an earlier one failed."""
    reported, *later = failures
    for failure in later:
        if failure.stage is not BuildStage.SIZE or reported.stage is BuildStage.CONFIGURATION:
            reported = failure
    return reported


def _config_class(model_class: type) -> type | None:
    entry = model_classes().get(model_class.__name__)
    if entry is not None and entry.load() is model_class:
        return entry.config_class()
    own: type | None = getattr(model_class, "config_class", None)
    return own


def _same_failure(failure: CannotBuild, other: CannotBuild) -> bool:
    """Whether two attempts failed alike, with one type of error on one way: another size will not help then.

    A constructor that refuses may take the next size.
    """
    if failure.stage in (BuildStage.SIZE, BuildStage.CONSTRUCTION):
        return False
    return (failure.stage, failure.origin) == (other.stage, other.origin)


def _built(
    model_class: Any, source: Any, attempt: int, seed: int, options: Mapping[str, Any]
) -> tuple[Any, dict[str, Any], PretrainedConfig]:
    """The model, its inputs and its configuration, with dropout and padding where it trains with both.

    Raises CannotBuild with the stage that failed.
    """
    try:
        return _built_with(model_class, source, attempt, seed, options, hard=True)
    except CannotBuild as failure:
        if failure.missing_package:
            raise
    return _built_with(model_class, source, attempt, seed, options, hard=False)


def _built_with(
    model_class: Any, source: Any, attempt: int, seed: int, options: Mapping[str, Any], *, hard: bool
) -> tuple[Any, dict[str, Any], PretrainedConfig]:
    """The same; with dropout and padding where it is to be `hard`, and without otherwise."""
    name, stage = model_class.__name__, BuildStage.CONFIGURATION
    try:
        config = tiny_config(source, attempt=attempt)
        if hard:
            set_dropout(config)
        _set_options(config, {**family_tables().options.get(name, {}), **options})
        stage = BuildStage.CONSTRUCTION
        count = _count_parameters(model_class, config)
        if count > MOST_PARAMETERS:
            stage = BuildStage.SIZE
            raise ValueError(f"{count:,} parameters are more than {MOST_PARAMETERS:,}")
        torch.manual_seed(seed)
        with marked_memory():
            model = _constructed(model_class, config)
        draw_marked(model)
        stage = BuildStage.INPUTS
        inputs = tiny_inputs(model, seed=seed, padding=hard)
        stage = BuildStage.TRAINING_STEP
        _train_once(model, inputs, seed)
    except CannotBuild:
        raise
    except Exception as error:  # models refuse in every way there is
        raise CannotBuild(name, stage, error) from None
    return model, inputs, config


def _count_parameters(model_class: Any, config: PretrainedConfig) -> int:
    """How many parameters the model would have; 0 if it cannot be constructed on the meta device."""
    try:
        with torch.device("meta"), ValuesOfMeta():
            return sum(p.numel() for p in _constructed(model_class, config).parameters())
    except NotImplementedError:  # a constructor that reads values; the configuration is small all the same
        return 0


def _constructed(model_class: Any, config: PretrainedConfig) -> Any:
    construct = getattr(model_class, "_from_config", model_class)  # sets the attention implementation as users get it
    config = copy.deepcopy(config)
    if is_own_code(model_class):
        name_dtype(config, torch.float32)
    if construct is model_class and getattr(config, _ATTENTION, "") is None:
        setattr(config, _ATTENTION, "eager")  # nothing else chooses one for a part that is no pretrained model
    return construct(config)


def _set_options(config: PretrainedConfig, options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        parts = [part for part in all_configs(config) if hasattr(part, name)] or [config]
        for part in parts:
            setattr(part, name, value)


def _train_once(model: Any, inputs: Mapping[str, Any], seed: int) -> None:
    with model_state_kept(model):
        model.train()
        torch.manual_seed(seed)
        loss = loss_of(model(**inputs))
        if not bool(torch.isfinite(loss)):
            raise ValueError(f"the loss is {float(loss.detach())}")
        loss.backward()  # type: ignore[no-untyped-call]
