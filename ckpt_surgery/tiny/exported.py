"""The model classes that transformers exports, found in its source: no model is imported."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path

from ckpt_surgery.model_patches import family_tables

_BASES = re.compile(r"^class (\w+)\(([^)]*)\)", re.MULTILINE)
_BASE_NAME = re.compile(r"PreTrainedModel$")


def exported_models(known: Iterable[str]) -> dict[str, str]:
    """The exported models besides those `known`, by name, with their modules below `transformers`."""
    transformers = import_module("transformers")
    skipped = {*known, *family_tables().left_out}
    root = Path(str(transformers.__file__)).parent
    candidates = {
        name: module
        for name, module in transformers._class_to_module.items()
        if _may_hold_models(module) and name[:1].isupper() and not name.isupper() and name not in skipped
    }
    bases: dict[str, list[str]] = {}
    for module in dict.fromkeys(candidates.values()):
        source = (root / module.replace(".", "/")).with_suffix(".py").read_text(encoding="utf-8")
        bases |= {match[1]: re.findall(r"\w+", match[2]) for match in _BASES.finditer(source)}
    return {
        name: module for name, module in candidates.items() if not _BASE_NAME.search(name) and _is_model(name, bases)
    }


def _may_hold_models(module: str) -> bool:
    folder, _, file = module.rpartition(".")
    torch_file = file.startswith("modeling_") and not file.startswith(("modeling_tf_", "modeling_flax_"))
    return folder.startswith("models.") and torch_file


def _is_model(name: str, bases: Mapping[str, list[str]], inside: tuple[str, ...] = ()) -> bool:
    """Whether one of the bases of a class, or of theirs, is called a pretrained model."""
    return any(
        _BASE_NAME.search(base) or (base not in inside and _is_model(base, bases, (*inside, base)))
        for base in bases.get(name, ())
    )
