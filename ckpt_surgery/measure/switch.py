"""Switch checkpointing on or off by the means of a model's library, or of its surgery by `wrap_blocks`."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from ckpt_surgery.errors import OptionTypeError, VerifyError
from ckpt_surgery.measure.results import Mode
from ckpt_surgery.measure.surgical_blocks import has_surgery, surgical_blocks
from ckpt_surgery.model_patches.release_names import (
    CLAIM,
    DIFFUSERS_CLAIM,
    DIFFUSERS_FUNCTION,
    DIFFUSERS_SWITCH,
    DIFFUSERS_SWITCH_OFF,
    FUNCTION,
    INPUT_GRADIENTS,
    SWITCH_OFF,
    SWITCH_ON,
    SWITCH_OPTIONS,
    TIMM_SWITCH,
    known_name,
)


class NoSuchModeError(OptionTypeError):
    """A request for the reentrant mode of a library that has only the other one."""


Switch = Callable[[nn.Module, Mode | None], None]
"""A function that switches the checkpointing of a model on in a mode, or off with None."""


def switch_of(model: nn.Module) -> Switch:
    """Return the function that switches a model's checkpointing. Raises VerifyError if there is none."""
    wrapped = has_surgery(model)
    # a surgery lets a model claim no support if transformers' method, which also hooks embeddings, would fail on it
    callable_on = _method(model, SWITCH_ON) is not None and (getattr(model, CLAIM, True) or not wrapped)
    # the models of sentence-transformers have no method to switch it off
    if callable_on and (_method(model, SWITCH_OFF) is not None or not wrapped):
        return switch_checkpointing
    if wrapped:
        return _switch_surgery
    if hasattr(model, DIFFUSERS_SWITCH) and getattr(model, DIFFUSERS_CLAIM, True):
        return _switch_diffusers
    if hasattr(model, TIMM_SWITCH):
        return _switch_timm
    raise VerifyError(
        f"{type(model).__name__} has no method to switch checkpointing on: call wrap_blocks on it first, or give a "
        "function of the model and the mode (None: off), as switch= or as the third thing that a factory returns"
    )


def switch_checkpointing(model: nn.Module, checkpointing: Mode | None) -> None:
    """Switch checkpointing on in the given mode, or off, by the method of the installed transformers.

    Late releases also make the outputs of embeddings require gradient when it is switched on. The run without
    checkpointing must differ in nothing else, so they still do after it is switched off here.

    Raises OptionTypeError if there is no method to switch it on; errors of that method pass through.
    """
    if checkpointing is not None:
        enable = _method(model, SWITCH_ON)
        if enable is None:
            name = type(model).__name__
            raise OptionTypeError(f"{name} has no method gradient_checkpointing_enable to switch checkpointing on")
        # a model that already checkpoints in this mode keeps its other options, such as context_fn
        functions = (vars(module).get(FUNCTION) for module in model.modules())
        present = next((f.keywords for f in functions if isinstance(f, partial) and f.func is checkpoint), {})
        reentrant = checkpointing == "reentrant"
        options = {**(present if present.get("use_reentrant") == reentrant else {}), "use_reentrant": reentrant}
        keyword = known_name(SWITCH_OPTIONS, inspect.signature(enable).parameters)
        enable(options) if keyword is None else enable(**{keyword: options})
        return
    disable = _method(model, SWITCH_OFF)
    if disable is None:
        return
    # some releases refuse to switch a model on, or off, in which no module has a flag for it
    with contextlib.suppress(Exception):
        switch_checkpointing(model, "non_reentrant")
    with contextlib.suppress(ValueError):
        disable()
    if getattr(model, "_hf_peft_config_loaded", False):  # then the outputs of embeddings no longer require gradient
        getattr(model, INPUT_GRADIENTS)()


def _switch_surgery(model: nn.Module, checkpointing: Mode | None) -> None:
    if checkpointing is None:  # otherwise it stays on: whoever switches it off restores the model (see `prepared`)
        for _, block in surgical_blocks(model):
            vars(block)[FUNCTION] = None


def _switch_diffusers(model: nn.Module, checkpointing: Mode | None) -> None:
    if checkpointing is None:
        getattr(model, DIFFUSERS_SWITCH_OFF)()
        return
    takes_function = DIFFUSERS_FUNCTION in inspect.signature(getattr(model, DIFFUSERS_SWITCH)).parameters
    if not takes_function and checkpointing == "reentrant":
        raise NoSuchModeError(
            f"{type(model).__name__}.{DIFFUSERS_SWITCH} takes no function, so that there is no other mode"
        )
    function = partial(checkpoint, use_reentrant=checkpointing == "reentrant")
    getattr(model, DIFFUSERS_SWITCH)(*([function] if takes_function else []))


def _switch_timm(model: nn.Module, checkpointing: Mode | None) -> None:
    if checkpointing == "reentrant":
        raise NoSuchModeError(f"{type(model).__name__}.{TIMM_SWITCH} has no reentrant mode")
    getattr(model, TIMM_SWITCH)(checkpointing is not None)


def _method(model: nn.Module, role: tuple[str, ...]) -> Callable[..., Any] | None:
    return next((getattr(model, name) for name in role if hasattr(model, name)), None)
