"""Build the model and the inputs of one target, in the process that runs them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

from ckpt_surgery.errors import CannotBuild
from ckpt_surgery.survey.target import SurveyTarget, TargetError, TargetKind
from ckpt_surgery.text import error_line

_MUST_RETURN = "it must return a model, a model and its inputs, or those and a switch"


def build(target: SurveyTarget) -> tuple[Any, Any, Any]:
    """Build the model of a target; return it with the arguments of its forward, and its own switch or None.

    Classes and configurations become tiny models with random weights; a factory's model is used unchanged.

    Raises:
        CannotBuild: no tiny form of the class trains.
        TargetError: the factory cannot be found or does not return what it should, or the code that comes with a
            configuration cannot be used.
    """
    if target.kind is TargetKind.FACTORY:
        model, inputs, switch = from_factory(target)
        if inputs is None:
            from torch import nn

            from ckpt_surgery.tiny import tiny_inputs

            kind = type(model).__name__
            if not isinstance(model, nn.Module):
                raise TargetError(f"it returns an object of type {kind}: {_MUST_RETURN}")
            if not hasattr(model, "config"):
                raise TargetError(
                    f"it returns a {kind} without a `config` to make inputs from: return (model, inputs)"
                )
            inputs = tiny_inputs(model)
        return model, inputs, switch
    from ckpt_surgery.tiny import tiny_model

    model_class, config = class_and_config(target)
    try:
        tiny = tiny_model(model_class, config, options=dict(target.options))
    except CannotBuild as failure:
        if target.kind is not TargetKind.REMOTE:
            raise
        from ckpt_surgery.survey.remote_code import build_problem

        raise TargetError(build_problem(Path(target.source.partition("::")[0]), failure)) from None
    return tiny.model, tiny.inputs, None


def moved(model: Any, inputs: Any, device: str) -> tuple[Any, Any]:
    """Return a model and the arguments of its forward on another device."""
    from torch import Tensor

    from ckpt_surgery.torch_names import tree_map_only

    def to_device(tensor: Tensor) -> Tensor:
        return tensor.detach().to(device).requires_grad_(tensor.requires_grad)

    return model.to(device), tree_map_only(Tensor, to_device, inputs)


def device_problem(device: str) -> str:
    """Return why no model can run on a device, in one sentence; empty if one can."""
    import torch

    try:
        torch.zeros(1, device=device).item()  # tensors on meta have no item
    except Exception as error:  # an unknown name, no driver, a torch without it: each raises something else
        return f"no model can run on {device} here ({error_line(error)}): name another device, or none"
    return ""


def class_and_config(target: SurveyTarget) -> tuple[Any, Any]:
    """Return the model class of a target that is not a factory, and its configuration at its released size.

    The configuration is an instance with the values of the file, or a class for its defaults. Raises like `build`.
    """
    if target.kind is TargetKind.REMOTE:
        from ckpt_surgery.survey.remote_code import load_remote

        place, _, reference = target.source.partition("::")
        return load_remote(Path(place), reference)
    from ckpt_surgery.tiny import model_classes

    entry = model_classes()[target.model]
    model_class: Any = entry.load()
    if target.kind is not TargetKind.CONFIG:
        return model_class, entry.config_class(target.model_type)
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    values: Mapping[str, Any] = json.loads(Path(target.source).read_text(encoding="utf-8"))
    is_mapped = values.get("model_type") in CONFIG_MAPPING
    config_class: Any = CONFIG_MAPPING[values["model_type"]] if is_mapped else model_class.config_class
    try:
        return model_class, config_class.from_dict(values)
    except Exception as error:  # third-party classes raise anything for a value they reject
        reason = f"no {config_class.__name__} can be made from it: {error_line(error)}"
        raise TargetError(f"{reason}: correct the values") from None


def from_factory(target: SurveyTarget) -> tuple[Any, Any, Any]:
    """Return what the factory of a target returns: a model, its inputs and its switch. Raises TargetError.

    Inputs and switch are None if it returns none.
    """
    _, _, attribute = target.argument.rpartition(":")
    module_name = target.module
    folder = os.path.dirname(target.code_file) or os.getcwd()
    if folder not in sys.path:  # as with `python FILE` and `python -m`
        sys.path.insert(0, folder)
    try:
        factory: Any = _module_in_file(target) if target.code_file else import_module(module_name)
        for part in attribute.split("."):
            factory = getattr(factory, part)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise TargetError(f"there is no module {error.name} here or on the path") from None
    except AttributeError as error:
        raise TargetError(str(error)) from None
    if not callable(factory):
        kind = type(factory).__name__
        raise TargetError(f"it is an object of type {kind}: name a function without arguments")
    result = factory()
    if not isinstance(result, tuple):
        return result, None, None
    if len(result) not in (2, 3):
        raise TargetError(f"it returns a tuple of {len(result)}: {_MUST_RETURN}")
    model, inputs, switch = (*result, None)[:3]
    if switch is not None and not callable(switch):
        kind = type(switch).__name__
        raise TargetError(f"it returns a switch of type {kind}: it must be a function of the model and the mode")
    return model, inputs, switch


def _module_in_file(target: SurveyTarget) -> Any:
    if target.module not in sys.modules:
        loader = SourceFileLoader(target.module, target.code_file)
        module = module_from_spec(spec_from_loader(target.module, loader))  # type: ignore[arg-type]  # it has one
        sys.modules[target.module] = module
        try:
            loader.exec_module(module)
        except BaseException:
            del sys.modules[target.module]
            raise
    return sys.modules[target.module]
