"""Look up model types, class names and variants of a class in the installed transformers."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from ckpt_surgery.survey.target import SurveyTarget, TargetKind

if TYPE_CHECKING:
    from ckpt_surgery.tiny import ModelEntry


def catalogue() -> Mapping[str, ModelEntry]:
    """Return every model class of the installed transformers by name."""
    from ckpt_surgery.tiny import model_classes

    return model_classes()


def named_targets(name: str) -> list[SurveyTarget]:
    """Return the class of that name, or all classes of that model type; dashes and underscores are equal there."""
    entries = catalogue()
    if name in entries:
        return [SurveyTarget.of_class(entries[name])]
    asked = name.replace("-", "_")
    return [
        SurveyTarget.of_class(entry, model_type)
        for entry in entries.values()
        for model_type in entry.types
        if model_type.replace("-", "_") == asked
    ]


def nearest_names(name: str) -> str:
    """Return the names most like this one, ignoring case: "a, b or c"; empty if there are none."""
    names: dict[str, str] = {}
    for entry in catalogue().values():
        names |= {model_type.lower(): model_type for model_type in entry.types if model_type.lower() not in names}
        names.setdefault(entry.name.lower(), entry.name)
    near = [names[match] for match in get_close_matches(name.lower().replace("-", "_"), names, n=3, cutoff=0.6)]
    return " or ".join(filter(None, [", ".join(near[:-1]), *near[-1:]]))


_HEADS_WITH_LOSS = ("ForCausalLM", "ForConditionalGeneration")
_ROUTER_OPTION = "output_router_logits"


def variants_of(target: SurveyTarget) -> Iterator[SurveyTarget]:
    """Yield the same class with its router loss, which a mixture of experts may lose under checkpointing."""
    if target.kind in (TargetKind.CLASS, TargetKind.CONFIG) and target.model.endswith(_HEADS_WITH_LOSS):
        entry = catalogue()[target.model]
        try:
            from transformers.models.auto.configuration_auto import CONFIG_MAPPING

            config_class = CONFIG_MAPPING[entry.model_type]  # without importing the module of the model
            if not _has_option(config_class, _ROUTER_OPTION):
                return
            # a configuration may have the option though the class does not read it
            text = inspect.getsource(vars(entry.load())["forward"])
        except Exception:  # a third-party module failed, which `build` will report, or the class has no own forward
            return
        if _ROUTER_OPTION in text and "aux_loss" in text:
            yield replace(target, variant="router loss", options=((_ROUTER_OPTION, True),))


def _has_option(config: object, option: str) -> bool:
    if not isinstance(config, type):
        return False
    own = hasattr(config, option) or option in inspect.signature(config.__init__).parameters  # type: ignore[misc]
    nested: Iterable[object] = (getattr(config, "sub_configs", None) or {}).values()
    parts = (part for part in nested if isinstance(part, type) and part.__name__ != "AutoConfig")
    return own or any(_has_option(part, option) for part in parts)
