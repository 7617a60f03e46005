"""Facts that rules ask for, beside those that every rule stands on: each is found by being in a module here."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from ckpt_surgery.codemods.facts.fact import ClassFact, FileFact


@cache
def declared_facts(package: str = __name__) -> tuple[tuple[FileFact[object], ...], tuple[ClassFact[object], ...]]:
    """Return the facts of files and those of classes that the modules of a package declare.

    Raises:
        ValueError: two facts have one name.
    """
    names = [module.name for module in pkgutil.iter_modules(importlib.import_module(package).__path__)]
    modules = [importlib.import_module(f"{package}.{name}") for name in names]
    declared = [(module, value) for module in modules for value in vars(module).values() if _is_fact(value)]
    of_files = {value.name: value for _, value in declared if isinstance(value, FileFact)}
    of_classes = {value.name: value for _, value in declared if isinstance(value, ClassFact)}
    for module, value in declared:
        if (of_files if isinstance(value, FileFact) else of_classes)[value.name] is not value:
            raise ValueError(f"{module.__name__} declares a fact {value.name!r}, and so does another module")
    return tuple(of_files.values()), tuple(of_classes.values())


def _is_fact(value: object) -> bool:
    return isinstance(value, FileFact | ClassFact)
