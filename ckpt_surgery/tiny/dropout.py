"""Dropout in configurations that know of it and have none: without it, nobody sees that other masks are drawn."""

from __future__ import annotations

import re
from contextlib import suppress

from transformers import PretrainedConfig

from ckpt_surgery.tiny.configs import all_configs

RATE = 0.1
_RATE_NAMES = re.compile(r"dropout|(^|_)pdrop$|drop_path|drop_rate|drop_prob")
_OTHERS = re.compile(r"layer_?drop|classifier|final_dropout")
"""Rates of whole layers, which are left out by chance, and of heads, which no block has."""


def set_dropout(config: PretrainedConfig) -> None:
    """Give every rate of 0 in a configuration and those inside it the value `RATE`. Rates of whole layers stay 0."""
    for part in all_configs(config):
        for name, value in list(vars(part).items()):
            is_rate = _RATE_NAMES.search(name) and not _OTHERS.search(name)
            if is_rate and isinstance(value, (int, float)) and not isinstance(value, bool) and value == 0:
                with suppress(Exception):  # a configuration that checks its values, and knows this one as an integer
                    setattr(part, name, RATE)
