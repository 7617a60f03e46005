"""Switch checkpointing on or off, through whichever method the installed transformers has."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any, cast

from torch import nn

from ckpt_surgery.measure.results import Mode


def switch_checkpointing(model: nn.Module, checkpointing: Mode | None) -> None:
    """Switch checkpointing on in the given mode, or off, through whichever method the release has.

    Late releases also make the embeddings' outputs require gradient when it is switched on. A run without is to
    differ in nothing else, so they stay like that when it is switched off here.

    Raises TypeError where it has none to switch it on; what that method itself raises passes through.
    """
    if checkpointing is not None:
        enable = _method(model, "enable")
        if enable is None:
            name = type(model).__name__
            raise TypeError(f"{name} has no method gradient_checkpointing_enable to switch checkpointing on")
        _call_enable(enable, {"use_reentrant": checkpointing == "reentrant"})
        return
    disable = _method(model, "disable")
    if disable is None:
        return
    # releases differ in whether they refuse to switch on, and off, what no module of the model has
    with contextlib.suppress(Exception):
        switch_checkpointing(model, "non_reentrant")
    with contextlib.suppress(ValueError):
        disable()
    if getattr(model, "_hf_peft_config_loaded", False):  # then those outputs were set back
        cast(Any, model).enable_input_require_grads()


def _method(model: nn.Module, verb: str) -> Callable[..., Any] | None:
    # late 5.x has both, and there the older name only warns
    names = [f"{prefix}_checkpointing_{verb}" for prefix in ("activation", "gradient")]
    return next((getattr(model, name) for name in names if hasattr(model, name)), None)


def _call_enable(enable: Callable[..., Any], options: dict[str, Any]) -> None:
    """Hand over the options under the name that the method has for them, else as its first argument."""
    parameters = inspect.signature(enable).parameters
    name = next((name for name in parameters if name.endswith("_checkpointing_kwargs")), None)
    enable(options) if name is None else enable(**{name: options})
