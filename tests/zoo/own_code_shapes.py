"""Model folders with remote code, in the shapes that it has on the Hub; written for these tests.

Each is small, with the attention by which the rules recognise a block.
"""

from __future__ import annotations

from pathlib import Path

from tests.survey.own_code import write_folder

_HEAD = """\
import torch
import torch.utils.checkpoint
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from .configuration_toy import ToyConfig


class ToyAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states, position_bias=None):
        scores = self.query(hidden_states) @ hidden_states.transpose(1, 2)
        if position_bias is not None:
            scores = scores + position_bias
        return scores.softmax(-1) @ self.value(hidden_states)


class ToyLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn = ToyAttention(config)
        self.linear = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states, position_bias=None):
        hidden_states = hidden_states + self.self_attn(hidden_states, position_bias)
        return hidden_states + torch.tanh(self.linear(hidden_states))

"""
_LAST_IMPORT = "from transformers.modeling_outputs import BaseModelOutput"
_LAYER_IMPORT = "from transformers.modeling_layers import GradientCheckpointingLayer"
_MODEL = """
class NAME(PreTrainedModel):
    config_class = ToyConfig
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_bias = nn.Parameter(torch.zeros(1, 1))
        self.layers = STACK
        self.gradient_checkpointing = False
        self.post_init()
SWITCH
    def forward(self, input_ids=None, **kwargs):
        hidden_states = self.embedding(input_ids)
        position_bias = self.position_bias.tanh()
LOOP
        return BaseModelOutput(last_hidden_state=hidden_states)
"""
_LIST = "nn.ModuleList([ToyLayer(config) for _ in range(config.num_hidden_layers)])"
_DICT = """nn.ModuleDict({f"layer_{at}": ToyLayer(config) for at in range(config.num_hidden_layers)})"""
_TWO_LISTS = """nn.ModuleList([ToyAttention(config) for _ in range(config.num_hidden_layers)])
        self.linears = nn.ModuleList(
            [nn.Linear(config.hidden_size, config.hidden_size) for _ in range(config.num_hidden_layers)]
        )"""
_SWITCH = """
    def _set_gradient_checkpointing(self, module, value=False):
        if isinstance(module, NAME):
            module.gradient_checkpointing = value
"""
_BRANCH = """\
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:

                def create_custom_forward(module):
                    def custom_forward(*inputs):
                        return module(*inputs)

                    return custom_forward

                hidden_states = torch.utils.checkpoint.checkpoint(create_custom_forward(layer), hidden_states, None)
            else:
                hidden_states = layer(hidden_states, position_bias=position_bias)"""
_ITEMS = """\
        for name, layer in self.layers.items():
            hidden_states = layer(hidden_states, position_bias=position_bias)"""
_CLOSURES = """\
        for layer in self.layers:

            def run(states):
                return layer(states, position_bias)

            if self.gradient_checkpointing and self.training:
                hidden_states = torch.utils.checkpoint.checkpoint(run, hidden_states, use_reentrant=False)
            else:
                hidden_states = run(hidden_states)"""
_FUNCTIONS = """\
        for attention, linear in zip(self.layers, self.linears, strict=True):

            def run(states):
                states = states + attention(states, position_bias)
                return states + torch.tanh(linear(states))

            if self.gradient_checkpointing and self.training:
                hidden_states = torch.utils.checkpoint.checkpoint(run, hidden_states, use_reentrant=False)
            else:
                hidden_states = run(hidden_states)"""
_TAKEN_APART = """\
        for attention, linear in zip(self.layers, self.linears, strict=True):

            def run(states):
                states = states + attention(states, position_bias)
                return states + torch.tanh(linear(states))

            if self.gradient_checkpointing and self.training:
                hidden_states = torch.utils.checkpoint.checkpoint(run, hidden_states, use_reentrant=False)
                continue
            hidden_states = hidden_states + attention(hidden_states, position_bias)
            hidden_states = hidden_states + torch.tanh(linear(hidden_states))"""
_PLAIN = """\
        for layer in self.layers:
            hidden_states = layer(hidden_states, position_bias=position_bias)"""
_DIRECT = """\
        for layer in self.layers:
            hidden_states = layer(hidden_states, position_bias)"""

SHAPES = (
    "old switch",
    "module dict",
    "closures",
    "functions",
    "bound functions",
    "by hand",
    "name of transformers",
    "healthy",
)


def modeling(shape: str) -> str:
    """Return the code of the model class of one shape."""
    head, name = _HEAD, class_name(shape)
    match shape:
        case "old switch":  # its branch leaves out the position bias, and its method switches no layer on
            stack, switch, loop = _LIST, _SWITCH, _BRANCH
        case "module dict":
            stack, switch, loop = _DICT, "", _ITEMS
        case "closures":  # the recompute finds the last layer, whichever it runs
            stack, switch, loop = _LIST, "", _CLOSURES
        case "functions":  # the same without blocks that could be layers
            stack, switch, loop = _TWO_LISTS, "", _FUNCTIONS
        case "bound functions":  # as "functions", and right: each function keeps its own modules
            loop = _FUNCTIONS.replace("def run(states):", "def run(states, attention=attention, linear=linear):")
            stack, switch = _TWO_LISTS, ""
        case "by hand":  # what stands beside the function is no call of it
            stack, switch, loop = _TWO_LISTS, "", _TAKEN_APART
        case "name of transformers":
            stack, switch, loop = _LIST, "", _PLAIN
        case "healthy":
            head = head.replace("class ToyLayer(nn.Module)", "class ToyLayer(GradientCheckpointingLayer)")
            head = head.replace(_LAST_IMPORT, f"{_LAYER_IMPORT}\n{_LAST_IMPORT}")
            stack, switch, loop = _LIST, "", _DIRECT
        case _:
            raise ValueError(shape)
    model = _MODEL.replace("STACK", stack).replace("SWITCH", switch).replace("LOOP", loop)
    return head + model.replace("NAME", name)


def class_name(shape: str) -> str:
    return "GPT2Model" if shape == "name of transformers" else "ToyModel"


def write_shape(folder: Path, shape: str) -> Path:
    """Write a folder of that shape, with its configuration."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 4, "vocab_size": 64}
    return write_folder(folder, {"modeling_toy": modeling(shape)}, name=class_name(shape), **sizes)
