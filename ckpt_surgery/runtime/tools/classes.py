"""Look up classes of modules, parameters and hooks: their libraries, and what `model_patches` knows of a family."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import CodeType
from typing import Any

from torch import Tensor, nn

from ckpt_surgery.model_patches import family_facts
from ckpt_surgery.model_patches.family import FamilyFacts
from ckpt_surgery.torch_names import FSDP1_FLATTENED, NormBase

PACKAGE = __name__.partition(".")[0]
"""The name of this package, as `library_of` gives it."""
BATCH_COUNT = "num_batches_tracked"
"""The buffer in which a batch normalization counts its batches."""


def descends(kind: type, name: str) -> bool:
    """Tell whether a class, or one of its bases, is called `name`."""
    return any(base.__name__ == name for base in kind.__mro__)


def is_sharded(module: nn.Module) -> bool:
    """Tell whether FSDP2 shards a module's parameters as a separate group, and gathers them for its forward."""
    return descends(type(module), "FSDPModule")


def is_flattened(parameter: Tensor) -> bool:
    """Tell whether FSDP1 manages a parameter, be it a flat one, or a part or view of one."""
    return any(getattr(each, FSDP1_FLATTENED, False) for each in (parameter, parameter._base))


def is_managed(parameter: Tensor) -> bool:
    """Tell whether a library moves a parameter's values in and out: FSDP, DeepSpeed."""
    return is_flattened(parameter) or hasattr(parameter, "ds_id") or descends(type(parameter), "DTensor")


def norms_with_momentum(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield, with paths, the batch normalizations with a momentum, which compute nothing from their `BATCH_COUNT`."""
    for path, part in module.named_modules():
        if isinstance(part, NormBase) and part.momentum is not None:
            yield path, part


def names_in(code: CodeType) -> Iterator[str]:
    """Yield the global names and attributes that a function uses, nested functions and comprehensions included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)


def library_of(hook: Any) -> str:
    """Return the name of a hook's top-level package; empty if it has none."""
    while isinstance(hook, partial):
        hook = hook.func
    return (getattr(hook, "__module__", None) or "").partition(".")[0]


def hooks_of_others(module: nn.Module) -> list[Any]:
    """List the hooks around a module's forward that this package did not register."""
    hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
    return [hook for hook in hooks if library_of(hook) != PACKAGE]


def class_of(module: nn.Module) -> type[nn.Module]:
    """Return the class of a module as its author wrote it, without the class that FSDP2 puts in front."""
    return next(kind for kind in type(module).__mro__ if not kind.__module__.startswith("torch.distributed."))


def facts_of(module: nn.Module) -> FamilyFacts:
    """Return what `model_patches` knows about the family of a module's class."""
    home, _, file = class_of(module).__module__.rpartition(".")
    return family_facts(f"{home.replace('.', '/')}/{file}.py")
