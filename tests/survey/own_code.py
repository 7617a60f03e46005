"""Toy model folders as on the Hub: a `config.json` with `auto_map`, and the code that it names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONFIGURATION = """
from transformers import PretrainedConfig


class ToyConfig(PretrainedConfig):
    model_type = "toy_of_mine"

    def __init__(self, vocab_size=1000, hidden_size=512, num_hidden_layers=24, pad_token_id=0, **other):
        self.vocab_size, self.hidden_size, self.num_hidden_layers = vocab_size, hidden_size, num_hidden_layers
        super().__init__(pad_token_id=pad_token_id, **other)
"""

MODELING = """
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput

from .configuration_toy import ToyConfig


class ToyLayer(BASE):
    def __init__(self, config):
        super().__init__()
        self.linear = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states):
        return hidden_states + self.linear(hidden_states).tanh()


class NAME(PreTrainedModel):
    config_class = ToyConfig
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([ToyLayer(config) for _ in range(config.num_hidden_layers)])
        self.gradient_checkpointing = False
        self.post_init()

    def forward(self, input_ids=None, **kwargs):
        hidden_states = self.embedding(input_ids)
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return BaseModelOutput(last_hidden_state=hidden_states)
"""


def modeling(name: str = "ToyModel", *, base: str = "GradientCheckpointingLayer") -> str:
    """Return the code of a model class of that name, whose blocks have that base class."""
    return MODELING.replace("NAME", name).replace("BASE", base)


def write_folder(
    folder: Path, files: Mapping[str, str] | None = None, *, name: str = "ToyModel", **config: Any
) -> Path:
    """Make a folder with a model class; `files` replace its code by module, `config` adds to its `config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    sources = {"configuration_toy": CONFIGURATION, "modeling_toy": modeling(name), **(files or {})}
    for module, text in sources.items():
        (folder / f"{module}.py").write_text(text, encoding="utf-8")
    auto_map = {"AutoConfig": "configuration_toy.ToyConfig", "AutoModel": f"modeling_toy.{name}"}
    values = {"model_type": "toy_of_mine", "architectures": [name], "auto_map": auto_map, **config}
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    return folder
