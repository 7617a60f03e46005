"""A configuration shrunk to the size of a unit test, of the same architecture.

Only generic rules live here, by the names and kinds of fields; what single families need is in `families`.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from transformers import PretrainedConfig

from ckpt_surgery.tiny import families
from ckpt_surgery.tiny.rules import (
    HEAD_DIM,
    HEADS,
    VOCABULARY,
    Context,
    assumed_rope,
    changed_value,
    chosen_layers,
    is_ruled,
    names_token,
)


def tiny_config(config: type | PretrainedConfig, *, step: int = 0) -> PretrainedConfig:
    """A configuration of the same class and architecture that makes a model of CPU size.

    `config` is a configuration class of transformers, or an instance, whose switches (activation, tied
    embeddings, layer types, dropouts ...) are kept. `step` is the rung of a ladder from the smallest form (0) to
    the most careful (`STEPS - 1`). A configuration that is already tiny comes back with the same values. A
    backbone of timm becomes a tiny one of transformers. Raises TypeError where `config` is neither class nor
    instance of a configuration, and what the configuration class raises where it refuses its own defaults.
    """
    original = default_config(config) if isinstance(config, type) else config
    if not isinstance(original, PretrainedConfig):
        raise TypeError(f"tiny_config wants a configuration of transformers or its class, not {original!r}")
    return _shrunk(original, step, _token_map(original))


def default_config(config_class: type) -> PretrainedConfig:
    """The configuration that `config_class` makes of nothing, or of the parts that it asks for."""
    build = families.DEFAULTS.get(str(getattr(config_class, "model_type", "")))
    config = build(config_class) if build else config_class()
    for part in all_configs(config):
        for name, value in families.SHOWN.get(part.model_type, {}).items():
            setattr(part, name, value)
    return config


def nested_configs(config: PretrainedConfig) -> Iterator[tuple[str, PretrainedConfig]]:
    """The configurations directly inside `config`, by attribute."""
    for name, value in vars(config).items():
        if isinstance(value, PretrainedConfig):
            yield name, value


def all_configs(config: PretrainedConfig) -> Iterator[PretrainedConfig]:
    """`config` and every configuration inside it."""
    yield config
    for _, inner in nested_configs(config):
        yield from all_configs(inner)


def _shrunk(config: PretrainedConfig, step: int, tokens: Mapping[int, int]) -> PretrainedConfig:
    if families.is_timm(config):
        return families.tiny_backbone()
    kept = _own_values(config)
    picks, old = chosen_layers(config, kept)
    context = Context(kept, step, old, picks, tokens, assumed_rope(config, kept))
    untouched = families.KEPT.get(config.model_type, ())
    changed = {n: v if n in untouched else changed_value(n, v, context) for n, v in kept.items()}
    for name, inner in nested_configs(config):
        changed[name] = _shrunk(inner, step, tokens).to_dict()
    changed.update(families.config_changes(config, changed, _parameters(type(config))))
    if old and "out_indices" in changed:
        changed.pop("out_features", None)  # the names of the layers that the indices count
    return _filled(_make(type(config), changed), changed, context)


def _make(config_class: Any, values: Mapping[str, Any]) -> Any:
    """A configuration of these values, which its class may take apart."""
    return config_class(**copy.deepcopy(dict(values)))


def _filled(config: PretrainedConfig, changed: Mapping[str, Any], context: Context) -> PretrainedConfig:
    """`config` with numbers for what its class leaves open but its model needs."""
    declared = _parameters(type(config))
    known = {*declared, "pad_token_id"} if "vocab_size" in declared else declared.keys() - {"pad_token_id"}
    open_ = {n: v for n, v in _FILLINGS.items() if n in known and _value(config, n) is None}
    if "num_key_value_heads" in open_:
        open_["num_key_value_heads"] = getattr(config, "num_attention_heads", HEADS)
    if "head_dim" in open_ and isinstance(getattr(config, "hidden_size", None), int):
        open_["head_dim"] = config.hidden_size // (getattr(config, "num_attention_heads", None) or HEADS)
    for more in (open_, {n: v for n, v in open_.items() if n in declared}):
        try:
            return _make(type(config), {**changed, **more}) if more else config
        except (TypeError, ValueError):  # a class that takes nothing undeclared
            continue
    return config


def _value(config: PretrainedConfig, name: str) -> Any:
    """A field's value; `...` where layers differ in it, which reading it refuses."""
    try:
        return getattr(config, name, None)
    except Exception:
        return ...


_FILLINGS = {
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
    "num_key_value_heads": HEADS,
    "head_dim": HEAD_DIM,
    "num_experts_per_tok": 2,
    "prediction_length": 4,
}


def _own_values(config: PretrainedConfig) -> dict[str, Any]:
    """What has to be said to build `config` again: without what its class derives from the rest."""
    values = {n: v for n, v in config.to_dict().items() if not n.startswith("_") and n not in _NOT_ARGUMENTS}
    for name in _parameters(type(config)):
        if name not in values and not name.startswith("_"):
            value = _value(config, name)
            if isinstance(value, (int, float, str, list, tuple, dict)):
                values[name] = value
    inner = {name for name, _ in nested_configs(config)}
    said = {n: v for n, v in values.items() if n in inner or _parameters(type(config)).get(n) is not None}
    lists = {n: v for n, v in values.items() if isinstance(v, (list, tuple))}
    for words in (said, {**said, **lists}):
        try:
            again = _make(type(config), words)
        except Exception:  # the class's own checks, of whatever kind: it wants more said
            continue
        derived = {n for n in values if n not in words and _value(again, n) == _value(config, n)}
        return {n: v for n, v in values.items() if n not in derived or is_ruled(n, v)}
    return values


_NOT_ARGUMENTS = {"transformers_version", "model_type", "architectures", "torch_dtype", "dtype"}


def _parameters(config_class: type) -> dict[str, Any]:
    """The declared arguments of a configuration class and their defaults (None where there is none)."""
    if dataclasses.is_dataclass(config_class):
        return {f.name: _default(f) for f in dataclasses.fields(config_class)}
    found: dict[str, Any] = {}
    for base in config_class.__mro__:
        if issubclass(base, PretrainedConfig) and base is not PretrainedConfig and "__init__" in vars(base):
            for name, parameter in inspect.signature(vars(base)["__init__"]).parameters.items():
                if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and name != "self":
                    found.setdefault(name, None if parameter.default is parameter.empty else parameter.default)
    return found


def _default(field: Any) -> Any:
    """A dataclass field's default; a factory counts as one."""
    if field.default is not dataclasses.MISSING:
        return field.default
    return None if field.default_factory is dataclasses.MISSING else field.default_factory


# --- special tokens ---------------------------------------------------------------------------------------


def _token_map(config: PretrainedConfig) -> dict[int, int]:
    """New ids, below the tiny vocabulary, for special tokens beyond it; one map for all nested configurations."""
    found: set[int] = set()
    for part in all_configs(config):
        for name, value in part.to_dict().items():
            if names_token(name):
                items = value if isinstance(value, (list, tuple)) else [value]
                found.update(item for item in items if type(item) is int)
    free = (i for i in range(VOCABULARY - 1, -1, -1) if i not in found)
    return {old: next(free) for old in sorted(found) if old >= VOCABULARY}
