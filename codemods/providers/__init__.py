"""Facts that only some rules need. To declare one in a module of this folder is all that registers it."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from ckpt_surgery.codemods.facts.fact import ClassFact, FileFact


@cache
def declared_facts(package: str = __name__) -> tuple[tuple[FileFact[object], ...], tuple[ClassFact[object], ...]]:
    """Return the facts of files, and those of classes, that the modules of a package declare.

    Raises:
        ValueError: two facts have the same name.
    """
    names = [module.name for module in pkgutil.iter_modules(importlib.import_module(package).__path__)]
    declared: dict[tuple[type, str], tuple[object, str]] = {}
    for name in names:
        for value in vars(importlib.import_module(f"{package}.{name}")).values():
            if isinstance(value, FileFact | ClassFact):
                first, where = declared.setdefault((type(value), value.name), (value, name))
                if first is not value:
                    raise ValueError(f"{where} and {name} of {package} both declare a fact {value.name!r}")
    facts = [value for value, _ in declared.values()]
    return (
        tuple(fact for fact in facts if isinstance(fact, FileFact)),
        tuple(fact for fact in facts if isinstance(fact, ClassFact)),
    )
