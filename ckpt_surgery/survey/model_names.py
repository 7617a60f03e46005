"""Model types and class names, looked up in the installed transformers."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING

from ckpt_surgery.survey.target import SurveyTarget

if TYPE_CHECKING:
    from ckpt_surgery.tiny import ModelEntry


def catalogue() -> Mapping[str, ModelEntry]:
    """Return every model class of the installed transformers by name."""
    from ckpt_surgery.tiny import model_classes

    return model_classes()


def class_target(entry: ModelEntry, model_type: str = "") -> SurveyTarget:
    """Return the target of one class, under its own model type or another that it serves."""
    return SurveyTarget(argument=entry.name, model=entry.name, model_type=model_type or entry.model_type)


def named_targets(name: str) -> list[SurveyTarget]:
    """Return the class of that name, or all classes of that model type; dashes and underscores are the same."""
    entries = catalogue()
    if name in entries:
        return [class_target(entries[name])]
    asked = name.replace("-", "_")
    return [
        class_target(entry, model_type)
        for entry in entries.values()
        for model_type in entry.types
        if model_type.replace("-", "_") == asked
    ]


def nearest_names(name: str) -> str:
    """Return the names most like this one, case aside: "a, b or c"; empty if there are none."""
    names: dict[str, str] = {}
    for entry in catalogue().values():
        names |= {model_type.lower(): model_type for model_type in entry.types if model_type.lower() not in names}
        names.setdefault(entry.name.lower(), entry.name)
    near = [names[match] for match in get_close_matches(name.lower().replace("-", "_"), names, n=3, cutoff=0.6)]
    return " or ".join(filter(None, [", ".join(near[:-1]), *near[-1:]]))
