"""A small transformers checkout among a user's files, in which the commands of the pages run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.zoo.own_code_shapes import write_shape

EXAMPLES = Path(__file__).parents[2] / "examples"
MODELS = "src/transformers/models"
CALL = "hidden_states = layer(hidden_states, mask, encoder_hidden_states=memory)"
FOO = f"""\
from torch import nn

from ...modeling_utils import PreTrainedModel


class FooLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn = FooAttention(config)

    def forward(self, hidden_states, attention_mask=None, encoder_hidden_states=None):
        return hidden_states + self.self_attn(hidden_states, attention_mask, encoder_hidden_states)


class FooModel(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer(config) for _ in range(config.num_layers)])
        self.gradient_checkpointing = False

    def forward(self, hidden_states, mask, memory):
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, mask)
            else:
                {CALL}
        return hidden_states
"""
LAYERS = """\
from torch import nn


class GradientCheckpointingLayer(nn.Module):
    gradient_checkpointing = False
"""
FILES = {
    f"{MODELS}/foo/modeling_foo.py": FOO,
    "src/transformers/modeling_layers.py": LAYERS,
    "my_model/modeling_my.py": FOO.replace("...modeling_utils", "transformers"),
    "my_config/config.json": json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}),
    "train.py": """\
import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
model = LlamaForCausalLM(config).train()
model.gradient_checkpointing_enable({"use_reentrant": False})
tokens = torch.arange(16).reshape(2, 8)
for _ in range(3):
    model(input_ids=tokens, labels=tokens).loss.backward()
    model.zero_grad()
""",
    "my_models.py": """\
import torch
from torch import nn

class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def gradient_checkpointing_enable(self, options): ...
    def forward(self, values):
        return self.linear(values)

def make():
    return Mine(), {"values": torch.ones(1, 2)}
""",
    "my_remote_model/config.json": json.dumps(
        {"model_type": "mine", "auto_map": {"AutoConfig": "mine.MineConfig", "AutoModel": "mine.MineModel"}}
    ),
    "my_remote_model/mine.py": """\
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

class MineConfig(PretrainedConfig):
    model_type = "mine"

class MineLayer(GradientCheckpointingLayer):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, hidden_states):
        return torch.tanh(self.linear(hidden_states))

class MineModel(PreTrainedModel):
    config_class = MineConfig
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Embedding(64, 8)
        self.layers = nn.ModuleList([MineLayer(), MineLayer()])
        self.gradient_checkpointing = False
        self.post_init()

    def forward(self, input_ids):
        hidden_states = self.embed(input_ids)
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return (hidden_states,)
""",
}


def plant() -> None:
    """Write the checkout into the working folder, over whatever a command made of it."""
    write_shape(Path("my_old_model"), "old switch")
    shutil.copytree(EXAMPLES, "examples", dirs_exist_ok=True)
    for name, text in FILES.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
