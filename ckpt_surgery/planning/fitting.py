"""Default configurations whose parts do not fit together, because each class sets its defaults by itself.

If a model type's defaults build no model that runs, it is tried again with the fields that its family names, or else
with the widths below. The config.json of a released checkpoint is never changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from transformers import PretrainedConfig

from ckpt_surgery.model_patches import family_tables
from ckpt_surgery.tiny.configs import nested_configs, text_config

_TEXT_WIDTHS = ("out_hidden_size", "output_dim", "text_hidden_size")
"""The width of the features that a part passes to the text."""


def fit_parts(config: PretrainedConfig) -> tuple[str, ...]:
    """Change the fields of a default configuration that keep its parts from fitting, and name each with its values."""
    text = text_config(config)
    width = getattr(text, "hidden_size", 0) if text is not config else 0
    changed: list[str] = []
    for path, part in list(_parts(config, "")):
        fields = family_tables().fitted.get(part.model_type)
        if fields is None:
            fields = {n: width for n in _TEXT_WIDTHS if width and type(getattr(part, n, None)) is int}
        changed += _set(part, fields, path)
    return tuple(changed)


def _set(part: Any, fields: Mapping[str, Any], path: str) -> list[str]:
    """Set fields of a part, those inside a dictionary or a configuration one by one, and list the changes."""
    changed: list[str] = []
    for name, new in fields.items():
        old = getattr(part, name, None)
        if isinstance(new, Mapping) and isinstance(old, PretrainedConfig):
            changed += _set(old, new, f"{path}{name}.")
            continue
        value = {**(old or {}), **new} if isinstance(new, Mapping) else new
        if value != old:
            setattr(part, name, value)
            changed.append(f"{path}{name} {old} -> {value}")
    return changed


def _parts(config: PretrainedConfig, path: str) -> Iterator[tuple[str, PretrainedConfig]]:
    """Yield `config` and every configuration inside it, each with the path of names that leads to it."""
    yield path, config
    for name, part in nested_configs(config):
        yield from _parts(part, f"{path}{name}.")
