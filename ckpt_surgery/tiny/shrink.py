"""Shrink a configuration to the size of a unit test, with the same architecture.

Only generic rules apply here, by the names and types of fields; what single families need is in `model_patches`.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from transformers import PretrainedConfig

from ckpt_surgery.errors import OptionTypeError
from ckpt_surgery.model_patches import family_tables
from ckpt_surgery.tiny.configs import all_configs, nested_configs
from ckpt_surgery.tiny.field_rules import changed_value, is_ruled, names_token
from ckpt_surgery.tiny.sizes import HEAD_DIM, HEADS, VOCABULARY, ShrinkContext, chosen_layers

_NOT_ARGUMENTS = {"transformers_version", "model_type", "architectures", "torch_dtype", "dtype"}
_FILL_VALUES = {
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
    "num_key_value_heads": HEADS,
    "head_dim": HEAD_DIM,
    "num_experts_per_tok": 2,
    "prediction_length": 4,
}
"""Values for fields that a class leaves open although its model needs them."""


def tiny_config(config: type | PretrainedConfig, *, attempt: int = 0) -> PretrainedConfig:
    """Shrink a configuration until it is small enough for a CPU, with the same class and architecture.

    A configuration that is already tiny comes back with the same values; a part that is a model of timm becomes a
    tiny backbone of transformers if the model takes one.

    Args:
        config: A configuration class of transformers, or an instance, whose switches (activation, tied embeddings,
            layer types, dropouts ...) are kept.
        attempt: From the smallest form (0) to the most careful (`sizes.ATTEMPTS` - 1).

    Returns:
        A new configuration.

    Raises:
        OptionTypeError: `config` is neither a class nor an instance of a configuration.
        Exception: Whatever the configuration class raises if it rejects its own defaults.
    """
    if not issubclass(config if isinstance(config, type) else type(config), PretrainedConfig):
        raise OptionTypeError(f"tiny_config takes a configuration of transformers or its class, not {config!r}")
    original = default_config(config) if isinstance(config, type) else config
    if _timm_field(original):  # a model of timm itself: replaced by timm's smallest
        tiny = copy.deepcopy(original)
        setattr(tiny, _timm_field(original), "test_resnet")
        tiny.model_args, tiny.use_pretrained_backbone = None, False
        return tiny
    # Special tokens beyond the tiny vocabulary get new ids below it, the same in all nested parts
    special: set[int] = set()
    for part in all_configs(original):
        for name, value in part.to_dict().items():
            if names_token(name):
                items = value if isinstance(value, (list, tuple)) else [value]
                special.update(item for item in items if type(item) is int)
    free = (i for i in range(VOCABULARY - 1, -1, -1) if i not in special)
    tokens = {old: next(free) for old in sorted(special) if old >= VOCABULARY}
    tiny = _shrunk(original, attempt, tokens)
    for part in list(all_configs(tiny)):
        for name, nested in list(nested_configs(part)):
            if _is_timm(nested):  # its class has put it back
                setattr(part, name, _tiny_backbone())
    return tiny


def _shrunk(config: PretrainedConfig, attempt: int, tokens: Mapping[int, int]) -> PretrainedConfig:
    if _is_timm(config):
        return _tiny_backbone()
    values = _own_values(config)
    kept_layers, old_layers = chosen_layers(config, values)
    # A model may assume rotary sections by default: for time, height and width
    sectioned = "mrope_section" in (getattr(config, "ignore_keys_at_rope_validation", None) or ())
    rope = values.get("rope_parameters")
    by_default = sectioned and isinstance(rope, dict) and "mrope_section" not in rope
    assumed = {"mrope_section": [16, 24, 24]} if by_default else {}
    context = ShrinkContext(values, attempt, old_layers, kept_layers, tokens, assumed)
    unchanged = family_tables().kept.get(config.model_type, ())
    changed = {n: v if n in unchanged else changed_value(n, v, context) for n, v in values.items()}
    for name, nested in nested_configs(config):
        changed[name] = _shrunk(nested, attempt, tokens).to_dict()
        if nested.architectures:  # some classes choose their parts by it
            changed[name]["architectures"] = nested.architectures
    # What the family needs besides, and what replaces a timm backbone
    declared, own = _parameters(type(config)), family_tables().tiny.get(config.model_type, {})
    new = {n.removeprefix("+"): v for n, v in own.items() if n in declared or n in changed or n.startswith("+")}
    for name, value in new.items():
        if isinstance(value, dict) and "model_type" in (changed.get(name) or {}):
            new[name] = {**changed[name], **value}
    if "use_mamba_kernels" in changed:
        new["use_mamba_kernels"] = False  # they run on CUDA only
    if changed.get("use_timm_backbone") or changed.get("backbone"):
        new |= {"use_timm_backbone": False, "backbone": None, "use_pretrained_backbone": False}
        new |= {"backbone_config": _tiny_backbone().to_dict(), "backbone_kwargs": None}
    changed |= new
    if old_layers and "out_indices" in changed:
        changed.pop("out_features", None)  # named after the layers that `out_indices` counts
    shrunk: PretrainedConfig = _make(type(config), changed)
    # Fill the fields that the class leaves open and its model needs
    missing = _open_fields(shrunk)
    for values_for_missing in (missing, {n: v for n, v in missing.items() if n in declared}):
        try:
            return _make(type(shrunk), {**changed, **values_for_missing}) if values_for_missing else shrunk
        except (TypeError, ValueError):  # the class accepts declared arguments only
            continue
    return shrunk


def _make(config_class: Any, values: Mapping[str, Any]) -> Any:
    """Make a configuration with these values. They are copied: classes change what they are given.

    Values that a class refuses although its base takes them, such as those that it passes itself, are set afterwards.
    """
    given = copy.deepcopy(dict(values))
    try:
        return config_class(**given)
    except TypeError:
        written = _written_arguments(config_class)
        own = {name: value for name, value in given.items() if name in written}
        if not written or own == given:
            raise
        config = config_class(**own)
    for name, value in given.items():
        if name not in own:
            with suppress(Exception):  # a property without a setter, or a check of the class
                setattr(config, name, value)
    return config


def fill_open_fields(config: PretrainedConfig, *, vocabulary: int) -> None:
    """Give values to the fields of a configuration and its parts that classes leave open and their models need.

    Heads are as large as the width allows, and the vocabulary has `vocabulary` tokens.
    """
    for part in all_configs(config):
        known = {n.removeprefix("+"): v for n, v in family_tables().tiny.get(part.model_type, {}).items()}
        own = {n: v for n, v in known.items() if type(v) is int and _value(part, n) is None}
        if "num_key_value_heads" in own:
            own["num_key_value_heads"] = getattr(part, "num_attention_heads", HEADS)
        for name, value in (own | _open_fields(part)).items():
            with suppress(Exception):  # a property without a setter, or a check of the class
                setattr(part, name, vocabulary if name == "vocab_size" else value)


def _open_fields(config: PretrainedConfig) -> dict[str, Any]:
    """Return values for the declared fields that are None although models need them."""
    declared = _parameters(type(config))
    fillable = {*declared, "pad_token_id"} if "vocab_size" in declared else declared.keys() - {"pad_token_id"}
    missing = {n: v for n, v in _FILL_VALUES.items() if n in fillable and _value(config, n) is None}
    if "num_key_value_heads" in missing:
        missing["num_key_value_heads"] = getattr(config, "num_attention_heads", HEADS)
    if "head_dim" in missing and isinstance(getattr(config, "hidden_size", None), int):
        missing["head_dim"] = config.hidden_size // (getattr(config, "num_attention_heads", None) or HEADS)
    return missing


def _value(config: PretrainedConfig, name: str) -> Any:
    """Return the value of a field; `...` if reading it raises, since layers may differ in it."""
    try:
        return getattr(config, name, None)
    except Exception:
        return ...


def _own_values(config: PretrainedConfig) -> dict[str, Any]:
    """Return the values from which `config` can be rebuilt, without those that its class derives from others."""
    values = {n: v for n, v in config.to_dict().items() if not n.startswith("_") and n not in _NOT_ARGUMENTS}
    for name in _parameters(type(config)):
        if name not in values and not name.startswith("_"):
            value = _value(config, name)
            if isinstance(value, (int, float, str, list, tuple, dict)):
                values[name] = value
    if "rope_scaling" in _written_arguments(type(config)):
        values["rope_scaling"] = _old_rope(config, values)
    nested = {name for name, _ in nested_configs(config)}
    given = {n: v for n, v in values.items() if n in nested or _parameters(type(config)).get(n) is not None}
    lists = {n: v for n, v in values.items() if isinstance(v, (list, tuple))}
    for subset in (given, {**given, **lists}):
        try:
            rebuilt = _make(type(config), subset)
        except Exception:  # a check of the class: it needs more values
            continue
        derived = {n for n in values if n not in subset and _value(rebuilt, n) == _value(config, n)}
        return {n: v for n, v in values.items() if n not in derived or is_ruled(n, v)}
    return values


def _old_rope(config: PretrainedConfig, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the `rope_scaling` of a class that declares it, without what transformers 5 adds: it may refuse that."""
    rope = getattr(config, "rope_scaling", None)
    if not isinstance(rope, dict):
        return None
    if not isinstance(getattr(type(config), "rope_scaling", None), property):
        return rope  # as it was given
    added = {"rope_theta"} if "rope_theta" in values else set()
    added |= {"rope_type"} if "type" in rope or rope.get("rope_type") == "default" else set()
    return {name: value for name, value in rope.items() if name not in added} or None


def _parameters(config_class: type) -> dict[str, Any]:
    """Return the declared arguments of a configuration class with their defaults, None for those without one.

    In transformers 5 every configuration is a dataclass, but code that comes with a model still writes `__init__`:
    both are read.
    """
    written = _written_arguments(config_class)
    if not dataclasses.is_dataclass(config_class):
        return written
    missing = dataclasses.MISSING
    fields = {
        f.name: f.default_factory if f.default is missing else f.default for f in dataclasses.fields(config_class)
    }
    return {name: None if default is missing else default for name, default in fields.items()} | written


def _written_arguments(config_class: type) -> dict[str, Any]:
    """Return the arguments of the `__init__` methods that are written out, with their defaults."""
    defaults: dict[str, Any] = {}
    for base in config_class.__mro__:
        if issubclass(base, PretrainedConfig) and base is not PretrainedConfig and "__init__" in vars(base):
            for name, parameter in inspect.signature(vars(base)["__init__"]).parameters.items():
                if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and name != "self":
                    defaults.setdefault(name, None if parameter.default is parameter.empty else parameter.default)
    return defaults


def default_config(config_class: type) -> PretrainedConfig:
    """Build `config_class` from its defaults, or from default parts if the class requires them."""
    facts = family_tables()
    given = facts.defaults.get(str(getattr(config_class, "model_type", "")), {})
    config: PretrainedConfig = config_class(**copy.deepcopy(dict(given)))
    for part in all_configs(config):
        for name, value in facts.shown.get(part.model_type, {}).items():
            setattr(part, name, value)
    return config


def _is_timm(config: PretrainedConfig) -> bool:
    """Tell whether this configuration is of a backbone of timm that is not tiny."""
    return _timm_field(config) != "" and not str(getattr(config, _timm_field(config))).startswith("test_")


def _timm_field(config: PretrainedConfig) -> str:
    """Return the field that names a model of timm; empty if the configuration is not of such a model."""
    return {"timm_backbone": "backbone", "timm_wrapper": "architecture"}.get(type(config).model_type, "")


def _tiny_backbone() -> PretrainedConfig:
    """Make a ResNet of transformers that replaces a timm backbone."""
    from transformers import ResNetConfig

    return ResNetConfig(
        embedding_size=64,
        hidden_sizes=[64, 64, 64, 64],
        depths=[2, 2, 2, 2],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )
