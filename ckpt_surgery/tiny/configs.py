"""Find the configurations inside a configuration, and set values in all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

import torch
from transformers import PretrainedConfig


def nested_configs(config: PretrainedConfig) -> Iterator[tuple[str, PretrainedConfig]]:
    """Yield the configurations directly inside `config`, each with the name of its attribute."""
    for name, value in vars(config).items():
        if isinstance(value, PretrainedConfig):
            yield name, value


def text_config(config: PretrainedConfig) -> PretrainedConfig:
    """Return the configuration of the text; `config` itself where there is none apart from it, or several."""
    try:
        text: PretrainedConfig = config.get_text_config()
    except (AttributeError, ValueError):  # no text, or several
        return config
    return text


def all_configs(config: PretrainedConfig) -> Iterator[PretrainedConfig]:
    """Yield `config` and, recursively, every configuration inside it."""
    yield config
    for _, nested in nested_configs(config):
        yield from all_configs(nested)


def name_dtype(config: PretrainedConfig, dtype: torch.dtype) -> None:
    """Set the dtype of the model in its configurations, for code that makes tensors of the dtype it reads there."""
    name = "dtype" if hasattr(PretrainedConfig(), "dtype") else "torch_dtype"  # renamed in 4.56
    for part in all_configs(config):
        setattr(part, name, dtype)


DROPOUT_RATE = 0.1
_RATE_NAMES = re.compile(r"dropout|(^|_)pdrop$|drop_path|drop_rate|drop_prob")
_OTHERS = re.compile(r"layer_?drop|classifier|final_dropout")
"""Rates of whole layers, which are left out by chance, and of heads, which no block has."""


def set_dropout(config: PretrainedConfig) -> None:
    """Give every rate of 0 in a configuration and those inside it the value `DROPOUT_RATE`.

    Without dropout, nobody sees that a recompute draws other masks. Rates of whole layers stay 0.
    """
    for part in all_configs(config):
        for name, value in list(vars(part).items()):
            is_rate = _RATE_NAMES.search(name) and not _OTHERS.search(name)
            if is_rate and isinstance(value, (int, float)) and not isinstance(value, bool) and value == 0:
                with suppress(Exception):  # a configuration that checks its values, and knows this one as an integer
                    setattr(part, name, DROPOUT_RATE)
