"""Build a tiny model that trains: the smallest form first, then more careful ones, until one trains for a step."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import deterministic
from transformers import PretrainedConfig

from ckpt_surgery.errors import BuildStage, CannotBuild, OptionError
from ckpt_surgery.measure.generators import random_state_kept, seed_all
from ckpt_surgery.measure.loss import loss_of
from ckpt_surgery.measure.restore import model_state_kept
from ckpt_surgery.model_patches import family_tables
from ckpt_surgery.tiny.catalog import model_classes
from ckpt_surgery.tiny.configs import all_configs, name_dtype, set_dropout
from ckpt_surgery.tiny.inputs import tiny_inputs
from ckpt_surgery.tiny.shrink import tiny_config
from ckpt_surgery.tiny.sizes import ATTEMPTS

_ATTENTION = "_attn_implementation"
MOST_PARAMETERS = 20_000_000
"""The number of parameters above which `tiny_model` builds no model."""


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
    """Build a small model with random weights, and inputs with which one training step of it works.

    The random number generators are left as they were. Models of more than `MOST_PARAMETERS` are not built: they are
    counted on the meta device, before any memory is spent.

    Args:
        model_class: A model class of transformers, or of code that derives from it.
        config: What `tiny_config` shrinks; by default the configuration class that `model_classes` names for the
            class, or the class's own. Dropout rates of 0 become `configs.DROPOUT_RATE`.
        seed: The seed of the weights and the inputs.
        options: Values for the attributes of all configurations that have them, or of the outermost if none has.

    Returns:
        The model, its inputs, its configuration, and what came of earlier attempts.

    Raises:
        CannotBuild: No attempt gives a model whose forward and backward run with a finite result.
        OptionError: `model_class` is not a class.
    """
    if not isinstance(model_class, type):
        raise OptionError(f"model_class is {model_class!r}: give a class, such as transformers.LlamaForCausalLM")
    source: Any = config
    if source is None:
        entry = model_classes().get(model_class.__name__)
        listed = entry if entry is not None and entry.load() is model_class else None
        source = listed.config_class() if listed else getattr(model_class, "config_class", None)
    if source is None:
        raise CannotBuild(model_class.__name__, BuildStage.CONFIGURATION, "the class names no configuration class")
    failures: list[CannotBuild] = []
    attempt = 0
    while attempt < ATTEMPTS:
        try:
            with random_state_kept():
                seed_all(seed)
                try:
                    built = _built(model_class, source, attempt, seed, options or {}, hard=True)
                except CannotBuild as failure:
                    if failure.missing_package:
                        raise
                    built = _built(model_class, source, attempt, seed, options or {}, hard=False)
            return TinyModel(*built, attempt, tuple(failures))
        except CannotBuild as failure:
            if failure.missing_package:
                raise  # another size will not help
            # if it fails in the same place again, another size will not help, unless a constructor checks sizes
            repeated = (
                bool(failures)
                and failure.stage not in (BuildStage.SIZE, BuildStage.CONSTRUCTION)
                and (failure.stage, failure.origin) == ((last := _reported(failures)).stage, last.origin)
            )
            failures.append(failure)
            attempt = ATTEMPTS - 1 if repeated and attempt < ATTEMPTS - 1 else attempt + 1
    raise _reported(failures)


def _reported(failures: Sequence[CannotBuild]) -> CannotBuild:
    """Choose the last failure, unless it is only too large: then an earlier one says more."""
    reported, *later = failures
    for failure in later:
        if failure.stage is not BuildStage.SIZE or reported.stage is BuildStage.CONFIGURATION:
            reported = failure
    return reported


def _built(
    model_class: Any, source: Any, attempt: int, seed: int, options: Mapping[str, Any], *, hard: bool
) -> tuple[Any, dict[str, Any], PretrainedConfig]:
    """Build the model, its inputs and its configuration; a `hard` one has dropout and padding.

    Raises CannotBuild with the stage that failed.
    """
    name, stage = model_class.__name__, BuildStage.CONFIGURATION
    try:
        config = tiny_config(source, attempt=attempt)
        if hard:
            set_dropout(config)
        for option, value in {**family_tables().options.get(name, {}), **options}.items():
            for part in [part for part in all_configs(config) if hasattr(part, option)] or [config]:
                setattr(part, option, value)
        stage = BuildStage.CONSTRUCTION
        count = 0
        # NotImplementedError: the constructor reads values; it is built uncounted then
        with suppress(NotImplementedError), torch.device("meta"), ValuesOfMeta():
            count = sum(p.numel() for p in _constructed(model_class, config).parameters())
        if count > MOST_PARAMETERS:
            stage = BuildStage.SIZE
            raise ValueError(f"{count:,} parameters are more than {MOST_PARAMETERS:,}")
        torch.manual_seed(seed)
        with uninitialized_as_nan():
            model = _constructed(model_class, config)
        draw_nan_weights(model)
        stage = BuildStage.INPUTS
        inputs = tiny_inputs(model, seed=seed, padding=hard)
        stage = BuildStage.TRAINING_STEP
        with model_state_kept(model):
            model.train()
            torch.manual_seed(seed)
            loss = loss_of(model(**inputs))
            if not bool(torch.isfinite(loss)):
                raise ValueError(f"the loss is {float(loss.detach())}")
            loss.backward()  # type: ignore[no-untyped-call]
    except CannotBuild:
        raise
    except Exception as error:  # models refuse in every way there is
        raise CannotBuild(name, stage, error) from None
    return model, inputs, config


def _constructed(model_class: Any, config: PretrainedConfig) -> Any:
    construct = getattr(model_class, "_from_config", model_class)  # chooses the attention implementation as for users
    config = copy.deepcopy(config)
    if not model_class.__module__.startswith("transformers."):  # code that may read the dtype of tensors there
        name_dtype(config, torch.float32)
    if construct is model_class and getattr(config, _ATTENTION, "") is None:
        setattr(config, _ATTENTION, "eager")  # nothing else chooses one for a part that is not a pretrained model
    return construct(config)


@contextmanager
def uninitialized_as_nan() -> Iterator[None]:
    """Fill tensors that are made without values with NaN: what their memory holds differs from run to run."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    settings: Any = deterministic
    fills = settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    settings.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        settings.fill_uninitialized_memory = fills


def draw_nan_weights(model: nn.Module) -> None:
    """Draw the weights that are NaN since their class leaves them uninitialized. Vectors become 1, biases 0."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.is_meta or not weight.is_floating_point() or not bool(weight.isnan().any()):
                continue
            if weight.ndim > 1:
                weight.copy_(torch.where(weight.isnan(), torch.randn_like(weight) * 0.02, weight))
            else:
                weight.fill_(0.0 if name.endswith("bias") else 1.0)


_READERS = (torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.__float__, torch.Tensor.__int__)


class ValuesOfMeta(TorchFunctionMode):
    """A mode that reads meta tensors as zeros, for constructors that read values when only sizes matter."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READERS and args[0].is_meta:
            args = (torch.zeros(args[0].shape, dtype=args[0].dtype, device="cpu"), *args[1:])
        return func(*args, **(kwargs or {}))
