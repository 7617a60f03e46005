"""Read and set the checkpointing state that transformers keeps on a model: flags, a switch, a function, hooks.

Under a surgery the flags are off, except those that it sets on stacks to say what is checkpointed.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from types import CodeType
from typing import Any, cast

from packaging.version import Version
from torch import nn
from torch.utils.checkpoint import checkpoint

from ckpt_surgery.model_patches.release_names import FLAG, FUNCTION, INNER_SWITCH, INPUT_GRADIENTS
from ckpt_surgery.runtime.blocks.discovery import is_layer
from ckpt_surgery.runtime.tools.classes import facts_of, names_in

_FLAG_NAMES = re.compile(r"checkpoint|ckpt|^with_cp$|^memory_efficient$")
_CHECKPOINT_FUNCTIONS = re.compile(r"^checkpoint(_seq|_sequential)?$|_checkpointing_func$")
_MODULE_FILE = nn.Module.__call__.__code__.co_filename
_EMBEDDING_HOOK = f"{INPUT_GRADIENTS}.<locals>"


def checkpoints_itself(module: nn.Module) -> bool:
    """Tell whether a module checkpoints by itself when its flag is on: a layer, or one with an inline branch."""
    return is_layer(module) or has_inline_branch(module)


def has_inline_branch(module: nn.Module) -> bool:
    """Tell whether a module's forward, or a method that it reaches, calls something that checkpoints."""
    return any(map(_CHECKPOINT_FUNCTIONS.search, _names_reached(type(module))))  # type: ignore[arg-type]  # hashable


def checkpoints_in_evaluation(module: nn.Module) -> bool:
    """Tell whether a module's inline branch also runs in evaluation mode, since it does not test `training`."""
    methods = _names_by_method(type(module)).values()  # type: ignore[arg-type]  # a class is hashable
    branches = [names for names in methods if any(map(_CHECKPOINT_FUNCTIONS.search, names))]
    return bool(branches) and not is_layer(module) and not any("training" in names for names in branches)


@cache
def _names_reached(kind: type[nn.Module]) -> frozenset[str]:
    return frozenset[str]().union(*_names_by_method(kind).values())  # type: ignore[arg-type]  # a class is hashable


@cache
def _names_by_method(kind: type[nn.Module]) -> Mapping[str, frozenset[str]]:
    """Collect the names used in a class's forward, and in the methods that it reaches."""
    names: dict[str, frozenset[str]] = {}
    methods = ["forward"]
    while methods:
        name = methods.pop()
        method = getattr(kind, name, None)  # a scripted class has no forward
        code = getattr(inspect.unwrap(method), "__code__", None) if callable(method) else None
        if name in names or not isinstance(code, CodeType) or code.co_filename == _MODULE_FILE:
            continue
        names[name] = frozenset(names_in(code))
        methods += [found for found in names[name] if inspect.isfunction(getattr(kind, found, None))]
    return names


def needs_cache(module: nn.Module) -> bool:
    """Tell whether a model breaks or computes something else without a cache, so that the cache must stay on."""
    name = type(module).__name__
    return name in facts_of(module).needs_cache or name in models_that_read_caches(module)


def models_that_read_caches(module: nn.Module) -> list[str]:
    """Name the models of a module's family that compute something else without a cache in the installed release."""
    return [name for name, release in facts_of(module).cache_decides.items() if _transformers() < Version(release)]


@cache
def _transformers() -> Version:
    return Version(importlib.metadata.version("transformers"))


def flags_of(module: nn.Module) -> list[str]:
    """Name the boolean attributes that say whether a module checkpoints."""
    names = {FLAG}
    if checkpoints_itself(module):
        reached = _names_reached(type(module))  # type: ignore[arg-type]  # a class is hashable
        kind = type(module)
        flags = filter(_FLAG_NAMES.search, reached)
        names |= {name for name in flags if not isinstance(getattr(kind, name, None), property)}
    return [name for name in sorted(names) if isinstance(getattr(module, name, None), bool)]


def set_own_switch(module: nn.Module, function: Callable[..., Any] | None) -> None:
    """Let a module checkpoint by itself with this function, in its library's way; None switches that off."""
    for name in flags_of(module):
        setattr(module, name, function is not None)
    if FUNCTION in _names_reached(type(module)):  # type: ignore[arg-type]  # a class is hashable
        setattr(module, FUNCTION, function)


def takes_switch(module: nn.Module) -> bool:
    """Tell whether a module is a model of transformers, with a method that switches checkpointing."""
    return hasattr(type(module), INNER_SWITCH)


def takes_embedding_hook(model: nn.Module) -> bool:
    """Tell whether a model survives the hook that switching checkpointing on puts on its embeddings.

    The hook makes their output require gradient; those of IBert return a tuple, on which it fails in every forward.
    """
    if getattr(model, "main_input_name", "") != "input_ids":
        return True  # no hook then
    try:
        embeddings = cast(Any, model).get_input_embeddings()
    except NotImplementedError:
        return True
    return embeddings is None or isinstance(embeddings, nn.Embedding)


def options_of(function: Callable[..., Any]) -> tuple[dict[str, Any], Any] | None:
    """Read the options and the offload target from a checkpoint function of transformers; None for other functions.

    The target is "cpu" if the function is the one by which transformers offloads, and None if no target is given. Some
    releases pass all their options to the function, the target among them: it may then be any that `wrap_blocks` has.
    """
    options = dict(function.keywords) if isinstance(function, partial) else {}
    inner = function.func if isinstance(function, partial) else function
    home, name = getattr(inner, "__module__", ""), getattr(inner, "__name__", "")
    own = home == "transformers.modeling_utils" and name == "checkpoint_func"
    if inner is not checkpoint and not own:
        return None
    offload = options.pop("offload", own)
    return options, "cpu" if offload is True else offload or None


def embedding_hooks(model: nn.Module) -> Iterator[tuple[nn.Module, int]]:
    """Yield the module and key of each hook by which transformers makes embeddings' outputs require gradient."""
    for module in model.modules():
        for key, hook in module._forward_hooks.items():
            if _EMBEDDING_HOOK in getattr(hook, "__qualname__", ""):
                yield module, key
