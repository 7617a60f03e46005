"""The model and the inputs of one job, made in the process that is to run them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from ckpt_surgery.survey.targets import SurveyTarget, TargetError
from ckpt_surgery.survey.worker_main import sentence


def build(job: SurveyTarget) -> tuple[Any, Any]:
    """The model of a job and the arguments of its forward, ready for one step.

    Classes and configurations become tiny models with random weights; a factory's model is taken as it is.

    Raises:
        CannotBuild: no tiny form of the class trains.
        TargetError: the factory cannot be found, or gives something else than a model or a pair.
    """
    if job.kind == "factory":
        return _from_factory(job)
    from ckpt_surgery.tiny import model_classes, tiny_model

    if job.kind == "remote":
        model_class, config = _from_folder(*job.source.split("::"))
    else:
        model_class = model_classes()[job.model].load()
        config = _from_file(job, model_class) if job.kind == "config" else None
    tiny = tiny_model(model_class, config, options=dict(job.options))
    return tiny.model, tiny.inputs


def _from_factory(job: SurveyTarget) -> tuple[Any, Any]:
    module_name, _, attribute = job.argument.partition(":")
    here = os.getcwd()
    if here not in sys.path:  # as for `python -m`
        sys.path.insert(0, here)
    try:
        found: Any = import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise TargetError(f"{job.argument}: there is no module {error.name} here or on the path") from None
    except AttributeError as error:
        raise TargetError(f"{job.argument}: {error}") from None
    if not callable(found):
        kind = type(found).__name__
        raise TargetError(f"{job.argument} cannot be called ({kind}): it must be a function without arguments")
    made = found()
    if not isinstance(made, tuple):
        return _with_inputs(job.argument, made)
    if len(made) != 2:
        raise TargetError(
            f"{job.argument} gives a tuple of {len(made)}: it must give a model, or a model and its inputs"
        )
    return made


def _with_inputs(name: str, model: Any) -> tuple[Any, Any]:
    """A model that came alone, with inputs of ours."""
    from torch import nn

    from ckpt_surgery.tiny import tiny_inputs

    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        raise TargetError(f"{name} gives an object of type {kind}: it must give a model, or a model and its inputs")
    if not hasattr(model, "config"):
        kind = type(model).__name__
        raise TargetError(f"{name} gives a {kind} without a `config` to make inputs from: give (model, inputs)")
    return model, tiny_inputs(model)


def _from_file(job: SurveyTarget, model_class: Any) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    values: Mapping[str, Any] = json.loads(Path(job.source).read_text(encoding="utf-8"))
    known = values.get("model_type") in CONFIG_MAPPING
    config_class = CONFIG_MAPPING[values["model_type"]] if known else model_class.config_class
    try:
        return config_class.from_dict(values)
    except Exception as error:  # whatever somebody else's class says to a value that it does not take
        raise TargetError(
            f"{job.argument}: no {config_class.__name__} can be made of it: {sentence(error)}: correct the values"
        ) from None


def _from_folder(folder: str, reference: str) -> tuple[Any, Any]:
    from transformers import AutoConfig
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    return get_class_from_dynamic_module(reference, folder), config
