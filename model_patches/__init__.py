"""Facts about single model families that names alone do not show, one file for each family.

`family_facts(path)` says what a rule has to know about a file, `family_tables()` what it takes to build models.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import fields
from functools import cache
from pathlib import PurePath
from typing import Any

from ckpt_surgery.model_patches.family import FamilyFacts, FamilyTables

if __name__ == "model_patches":
    raise ImportError("import it as ckpt_surgery.model_patches: under this name each of its classes would exist twice")

_NO_FACTS = FamilyFacts()
_NO_FAMILIES = ("family", "release_names", "vocabulary")
_RULE_FIELDS = {field.name for field in fields(FamilyFacts)}
_KNOWN = _RULE_FIELDS | {field.name for field in fields(FamilyTables)} | {"families"}


@cache
def family_files() -> dict[str, dict[str, Any]]:
    """Return the constants of each family's file, with their names in lower case.

    Raises:
        ValueError: a file has a constant that `family.py` does not explain.
    """
    files: dict[str, dict[str, Any]] = {}
    for name in (module.name for module in pkgutil.iter_modules(__path__) if module.name not in _NO_FAMILIES):
        constants = vars(importlib.import_module(f"{__name__}.{name}")).items()
        files[name] = {constant.lower(): value for constant, value in constants if constant[0].isupper()}
        if unknown := files[name].keys() - _KNOWN:
            known = ", ".join(sorted(_KNOWN)).upper()
            raise ValueError(f"{name}.py in model_patches has {', '.join(unknown).upper()}: there are {known}")
    return files


@cache
def registry() -> dict[str, FamilyFacts]:
    """Return the facts for rules by model folder (`gpt_bigcode`), of the families that have some."""
    families: dict[str, FamilyFacts] = {}
    for name, constants in family_files().items():
        if own := {field: value for field, value in constants.items() if field in _RULE_FIELDS}:
            families.update(dict.fromkeys(constants.get("families", (name,)), FamilyFacts(**own)))
    return families


@cache
def family_tables() -> FamilyTables:
    """Return the tables for building the models of all families, and their inputs."""
    tables: dict[str, dict[str, Any]] = {}
    for constants in family_files().values():
        for field in constants.keys() - _RULE_FIELDS - {"families"}:
            for key, value in constants[field].items():
                tables.setdefault(field, {}).update(dict.fromkeys((key,) if isinstance(key, str) else key, value))
    return FamilyTables(**tables)


@cache
def family_of(path: str) -> str:
    """Return the model folder that a file lies in; for `modeling_x.py` elsewhere (remote code), `x`."""
    pure = PurePath(path)
    folder = pure.parent.name
    if folder in registry():
        return folder
    for prefix in ("modeling_", "modular_"):
        if pure.stem.startswith(prefix) and pure.parent.parent.name not in ("models", "deprecated"):
            return pure.stem.removeprefix(prefix)
    return folder or pure.stem


def family_facts(path: str) -> FamilyFacts:
    """Return the facts of the family that a file belongs to; empty if names show everything."""
    return registry().get(family_of(path), _NO_FACTS)
