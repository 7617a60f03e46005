"""The model and the inputs of one job, made in the process that is to run them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from ckpt_surgery.verification.survey.targets import Job, TargetError


def build(job: Job) -> tuple[Any, Any]:
    """The model of a job and the arguments of its forward, ready for one step.

    Classes and configurations become tiny models with random weights; a factory's model is taken as it is.

    Raises:
        CannotBuild: no tiny form of the class trains.
        TargetError: the factory cannot be found, or gives something else than a model or a pair.
    """
    if job.kind == "factory":
        return _from_factory(job)
    from ckpt_surgery.verification.tiny import model_classes, tiny_model

    if job.kind == "remote":
        model_class, config = _from_folder(*job.source.split("::"))
    else:
        model_class = model_classes()[job.model].load()
        config = _from_file(job, model_class) if job.kind == "config" else None
    tiny = tiny_model(model_class, config, options=dict(job.options))
    return tiny.model, tiny.inputs


def _from_factory(job: Job) -> tuple[Any, Any]:
    module_name, _, attribute = job.target.partition(":")
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
        raise TargetError(f"{job.target}: there is no module {error.name} here or on the path") from None
    except AttributeError as error:
        raise TargetError(f"{job.target}: {error}") from None
    if not callable(found):
        raise TargetError(f"{job.target} is a {type(found).__name__}: it must be a function without arguments")
    made = found()
    if not isinstance(made, tuple):
        from ckpt_surgery.verification.tiny import tiny_inputs

        return made, tiny_inputs(made)
    if len(made) != 2:
        raise TargetError(
            f"{job.target} gives a tuple of {len(made)}: it must give a model, or a model and its inputs"
        )
    return made


def _from_file(job: Job, model_class: Any) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    values: Mapping[str, Any] = json.loads(Path(job.source).read_text(encoding="utf-8"))
    known = values.get("model_type") in CONFIG_MAPPING
    return (CONFIG_MAPPING[values["model_type"]] if known else model_class.config_class).from_dict(values)


def _from_folder(folder: str, reference: str) -> tuple[Any, Any]:
    from transformers import AutoConfig
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    return get_class_from_dynamic_module(reference, folder), config
