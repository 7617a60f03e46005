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
    """Return the configuration of the text part; `config` itself if there is none or more than one."""
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
    """Set the dtype of the model in its configurations, for code that reads there in which dtype to make tensors."""
    name = "dtype" if hasattr(PretrainedConfig(), "dtype") else "torch_dtype"  # renamed in 4.56
    for part in all_configs(config):
        setattr(part, name, dtype)


DROPOUT_RATE = 0.1
_RATE_NAMES = re.compile(r"dropout|(^|_)pdrop$|drop_path|drop_rate|drop_prob")
_KEPT_RATES = re.compile(r"layer_?drop|classifier|final_dropout")
"""Names of rates that stay 0: of whole layers, which would be skipped at random, and of heads, outside of blocks."""


def set_dropout(config: PretrainedConfig) -> None:
    """Give every rate of 0 in a configuration and those inside it the value `DROPOUT_RATE`.

    Without dropout, a recompute that draws other masks would go unnoticed.
    """
    for part in all_configs(config):
        for name, value in list(vars(part).items()):
            is_rate = _RATE_NAMES.search(name) and not _KEPT_RATES.search(name)
            if is_rate and isinstance(value, (int, float)) and not isinstance(value, bool) and value == 0:
                with suppress(Exception):  # a configuration may check its values, and take only integers here
                    setattr(part, name, DROPOUT_RATE)
