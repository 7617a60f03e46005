"""A pipeline's forward is bound to the outer model, and the checkpoint function stands on the decoder inside it.

`gradient_checkpointing_enable()` gives `_gradient_checkpointing_func` to the modules that have a flag, and the outer
model has none.
"""

from types import MethodType

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from benchmarks.faults.script import error, train

FAULT = {
    "source": "https://github.com/hpcaitech/ColossalAI/commit/eb24fcd914f4c38fb82bc082db84d13d50865572",
    "kind": "arguments lost",
    "saw": "AttributeError: 'OPTModel' object has no attribute '_gradient_checkpointing_func'",
    "right": "the function of the decoder is called",
    "cause": ["_gradient_checkpointing_func"],
    "cure": "",
}
MENDED = False


class OPTDecoderLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(width, 2, batch_first=True)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, hidden_states, attention_mask=None):
        mixed, _ = self.self_attn(hidden_states, hidden_states, hidden_states, attn_mask=attention_mask)
        return self.fc2(torch.relu(self.fc1(hidden_states + mixed)))


class OPTPreTrainedModel(PreTrainedModel):
    config_class = PreTrainedConfig
    supports_gradient_checkpointing = True


class OPTDecoder(OPTPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(32, 16)
        self.layers = nn.ModuleList(OPTDecoderLayer(16) for _ in range(3))
        self.gradient_checkpointing = False
        self.post_init()


class OPTModel(OPTPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.decoder = OPTDecoder(config)
        self.post_init()


def opt_model_forward(self, input_ids=None, hidden_states=None, stage=(0, 3)):
    """Run the layers of one pipeline stage."""
    decoder = self.decoder
    if hidden_states is None:
        hidden_states = decoder.embed_tokens(input_ids)
    length = hidden_states.shape[1]
    mask = torch.full((length, length), float("-inf")).triu(1)
    for layer in decoder.layers[stage[0] : stage[1]]:
        if decoder.gradient_checkpointing and decoder.training:
            owner = decoder if MENDED else self
            hidden_states = owner._gradient_checkpointing_func(layer.__call__, hidden_states, mask)
        else:
            hidden_states = layer(hidden_states, attention_mask=mask)
    return hidden_states


def make():
    torch.manual_seed(0)
    model = OPTModel(PreTrainedConfig()).train()
    model.forward = MethodType(opt_model_forward, model)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model, {"input_ids": torch.randint(32, (2, 8))}


def symptom():
    return error(lambda: train(make, steps=2))


if __name__ == "__main__":
    train(make)
