"""What the class of a module tells: its ancestors by name, and what `model_patches` knows about its family."""

from __future__ import annotations

from functools import cache

from torch import nn

from ckpt_surgery.model_patches import family_facts
from ckpt_surgery.model_patches.family import FamilyFacts


def descends(kind: type, name: str) -> bool:
    """Whether a class, or one that it inherits from, is called `name`."""
    return any(base.__name__ == name for base in kind.__mro__)


def class_of(module: nn.Module) -> type[nn.Module]:
    """The class of a module as its author wrote it: FSDP2 puts one of torch's own in front of it."""
    return next(kind for kind in type(module).__mro__ if not kind.__module__.startswith("torch.distributed."))


def facts_of(module: nn.Module) -> FamilyFacts:
    """What `model_patches` knows about the family that a module's class belongs to."""
    return _facts_of_class(class_of(module))  # type: ignore[arg-type]  # a class is hashable


@cache
def _facts_of_class(kind: type) -> FamilyFacts:
    home, _, file = kind.__module__.rpartition(".")
    return family_facts(f"{home.replace('.', '/')}/{file}.py")
