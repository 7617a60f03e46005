"""What transformers itself keeps on a model about checkpointing: flags, a switch, a function, hooks on embeddings.

While a surgery is in place the layers' own checkpointing is off, and the flags say what is checkpointed.
"""

from __future__ import annotations

import importlib.metadata
import inspect
from collections.abc import Callable, Iterator
from functools import cache, partial
from types import CodeType
from typing import Any, cast

from packaging.version import Version
from torch import nn
from torch.utils.checkpoint import checkpoint

from ckpt_surgery.runtime.classes import class_of, facts_of, names_in
from ckpt_surgery.runtime.discovery import is_layer

FLAG = "gradient_checkpointing"
SWITCH = "_set_gradient_checkpointing"
FUNCTION = "_gradient_checkpointing_func"
"""The attribute that holds the function which checkpoints a block. On a block of a surgery None switches it off."""
EMBEDDING_HANDLES = ("_require_grads_hook", "_require_grads_hooks")
"""The attributes that hold the handles of hooks on embeddings."""
INLINE_FLAGS = (FLAG, "use_checkpoint", "use_checkpointing", "with_cp", "grad_checkpointing")
_EMBEDDING_HOOK = "enable_input_require_grads.<locals>"


def checkpoints_itself(module: nn.Module) -> bool:
    """Whether a module would checkpoint by itself when its flag says so: a layer, or one with an inline branch."""
    return is_layer(module) or _has_inline_branch(type(module))  # type: ignore[arg-type]  # a class is hashable


@cache
def _has_inline_branch(kind: type[nn.Module]) -> bool:
    forward = getattr(kind, "forward", None)  # a scripted class has none
    code = getattr(inspect.unwrap(forward), "__code__", None) if forward is not None else None
    return isinstance(code, CodeType) and any(
        name == "checkpoint" or name.endswith("_checkpointing_func") for name in names_in(code)
    )


def needs_cache(module: nn.Module) -> bool:
    """Whether a model breaks or computes something else without a cache, so that it must not be switched off."""
    name = type(module).__name__
    return name in facts_of(module).needs_cache or name in models_that_read_caches(module)


def models_that_read_caches(module: nn.Module) -> list[str]:
    """The models of a module's family that compute something else without a cache, in the installed release."""
    return [name for name, release in facts_of(module).cache_decides.items() if _transformers() < Version(release)]


def reads_caches_of_parts(module: nn.Module) -> bool:
    """Whether a model goes on with the caches that its parts have filled, so that none of them must be dropped."""
    return class_of(module).__name__ in facts_of(module).reads_caches


@cache
def _transformers() -> Version:
    return Version(importlib.metadata.version("transformers"))


def is_recorder(forward: Any) -> bool:
    """Whether this is what transformers 4 puts in place of a forward for one call, to record what it returns."""
    return "check_model_inputs.<locals>" in getattr(getattr(forward, "__code__", None), "co_qualname", "")


def set_flags(module: nn.Module, value: bool) -> None:
    """Set the flags of a module that has any; they stay off where they would make it checkpoint by itself."""
    own = checkpoints_itself(module) or needs_cache(module)
    for name in INLINE_FLAGS if own else (FLAG,):
        if isinstance(getattr(module, name, None), bool):
            setattr(module, name, value and not own)


def takes_switch(module: nn.Module) -> bool:
    """Whether this is a model of transformers, which has a method to switch checkpointing on and off."""
    return hasattr(type(module), SWITCH)


def takes_embedding_hook(model: nn.Module) -> bool:
    """Whether a model survives the hook that switching checkpointing on puts on its embeddings.

    The hook makes their output require gradient; IBert's return a tuple, and then every forward fails.
    """
    if getattr(model, "main_input_name", "") != "input_ids":
        return True  # no hook then
    try:
        embeddings = cast(Any, model).get_input_embeddings()
    except NotImplementedError:
        return True
    return embeddings is None or isinstance(embeddings, nn.Embedding)


def options_of(function: Callable[..., Any]) -> tuple[dict[str, Any], bool] | None:
    """The options in a function that transformers made to checkpoint, and whether it offloads; None for others."""
    options = dict(function.keywords) if isinstance(function, partial) else {}
    inner = function.func if isinstance(function, partial) else function
    if inner is checkpoint:
        return options, False
    home, name = getattr(inner, "__module__", ""), getattr(inner, "__name__", "")
    return (options, True) if home == "transformers.modeling_utils" and name == "checkpoint_func" else None


def embedding_hooks(model: nn.Module) -> Iterator[tuple[nn.Module, int]]:
    """The hooks by which transformers makes outputs of embeddings require gradient: module and key of each."""
    for module in model.modules():
        for key, hook in module._forward_hooks.items():
            if _EMBEDDING_HOOK in getattr(hook, "__qualname__", ""):
                yield module, key
