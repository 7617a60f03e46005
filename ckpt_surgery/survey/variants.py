"""Further runs of a class with other settings: a mixture of experts with its router loss."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ckpt_surgery.survey.model_names import catalogue
from ckpt_surgery.survey.target import SurveyTarget, TargetKind

if TYPE_CHECKING:
    from ckpt_surgery.tiny import ModelEntry

_HEADS_WITH_LOSS = ("ForCausalLM", "ForConditionalGeneration")
_ROUTER_OPTION, _ROUTER_VARIANT = "output_router_logits", "router loss"


def variants_of(target: SurveyTarget) -> Iterator[SurveyTarget]:
    """Yield the same class with its router loss, which a mixture of experts may lose under checkpointing."""
    if target.kind in (TargetKind.CLASS, TargetKind.CONFIG) and target.model.endswith(_HEADS_WITH_LOSS):
        entry = catalogue()[target.model]
        if _has_option(_config_class(entry), _ROUTER_OPTION) and _uses(entry, _ROUTER_OPTION, "aux_loss"):
            yield replace(target, variant=_ROUTER_VARIANT, options=((_ROUTER_OPTION, True),))


def _config_class(entry: ModelEntry) -> type | None:
    """Return the configuration class by model type, without importing the model's module."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    try:
        config_class = CONFIG_MAPPING[entry.model_type]
    except Exception:  # the import of a third-party module failed: `build` will report it
        return None
    return config_class if isinstance(config_class, type) else None


def _has_option(config: type | None, option: str) -> bool:
    if config is None:
        return False
    own = hasattr(config, option) or option in inspect.signature(config.__init__).parameters  # type: ignore[misc]
    nested: Iterable[object] = (getattr(config, "sub_configs", None) or {}).values()
    parts = (part for part in nested if isinstance(part, type) and part.__name__ != "AutoConfig")
    return own or any(_has_option(part, option) for part in parts)


def _uses(entry: ModelEntry, *words: str) -> bool:
    """Tell whether the class's own forward names all of these: configurations have options that nothing reads."""
    try:
        text = inspect.getsource(vars(entry.load())["forward"])
    except Exception:  # not importable, or no forward of its own
        return False
    return all(word in text for word in words)
