"""What single model families do that names alone do not show. `family_facts(path)` looks one up."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from pathlib import PurePath

from ckpt_surgery.model_patches.family import FamilyFacts

_NO_FACTS = FamilyFacts()


@cache
def registry() -> dict[str, FamilyFacts]:
    """Model folder (`gpt_bigcode`) to its facts, from every module of this package that defines `FACTS`."""
    families: dict[str, FamilyFacts] = {}
    for module in pkgutil.iter_modules(__path__):
        facts = getattr(importlib.import_module(f"{__name__}.{module.name}"), "FACTS", None)
        if isinstance(facts, FamilyFacts):
            families.update(dict.fromkeys(facts.families or (module.name,), facts))
    return families


@cache
def family_of(path: str) -> str:
    """The model folder that a file lies in; for `modeling_x.py` elsewhere (remote code), `x`."""
    pure = PurePath(path)
    folder = pure.parent.name
    if folder in registry():
        return folder
    for prefix in ("modeling_", "modular_"):
        if pure.stem.startswith(prefix) and pure.parent.parent.name not in ("models", "deprecated"):
            return pure.stem.removeprefix(prefix)
    return folder or pure.stem


def family_facts(path: str) -> FamilyFacts:
    """The facts of the family that a file belongs to; empty if names show everything."""
    return registry().get(family_of(path), _NO_FACTS)
