"""A checkpoint's wrapper adds two arguments behind those that it is given, and these had grown by two.

The masks of landmark attention land on `output_attentions` and `use_cache` of the layer, and the landmarks are off.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig, PreTrainedModel

from benchmarks.faults.script import error, train

FAULT = {
    "source": "https://github.com/axolotl-ai-cloud/axolotl/commit/2a801b001a04049c644ede0225c71ece017d2a95",
    "kind": "arguments lost",
    "saw": "the masks arrive as other parameters of the layer, and False arrives as a mask",
    "right": "every argument stands at the place of its parameter",
    "cause": ["another `is_mem`", "output_attentions", "other values", "wrong parameter", "by position"],
    "cure": "apply",
}
MENDED = False


class LlamaAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv_proj, self.o_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, hidden_states, attention_mask, output_attentions, is_mem, last_section_mask):
        query, key, value = self.qkv_proj(hidden_states).chunk(3, -1)
        scores = query @ key.transpose(1, 2) + attention_mask
        if is_mem is not None:
            scores = scores - (is_mem[:, None] & ~last_section_mask).float()
        weights = scores.softmax(-1)
        return self.o_proj(weights @ value), weights if output_attentions else None


class LlamaDecoderLayer(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.self_attn = LlamaAttention(width)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.SiLU())

    def forward(
        self,
        hidden_states,
        attention_mask=None,
        past_key_value=None,
        output_attentions=False,
        use_cache=False,
        is_mem=None,
        last_section_mask=None,
    ):
        mixed, weights = self.self_attn(hidden_states, attention_mask, output_attentions, is_mem, last_section_mask)
        hidden_states = hidden_states + mixed
        return hidden_states + self.mlp(hidden_states), weights


class LlamaModel(PreTrainedModel):
    config_class = PreTrainedConfig
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(32, 16)
        self.layers = nn.ModuleList(LlamaDecoderLayer() for _ in range(2))
        self.gradient_checkpointing = False
        self.post_init()

    def forward(self, input_ids, output_attentions=False):
        length = input_ids.shape[1]
        mask = torch.full((length, length), float("-inf")).triu(1)
        is_mem = input_ids == 3
        last_section = torch.arange(length).expand(length, length) >= length // 2
        hidden_states = self.embed_tokens(input_ids)
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:

                def create_custom_forward(module):
                    def custom_forward(*inputs):
                        if MENDED:
                            return module(*inputs)
                        return module(*inputs, output_attentions, None)

                    return custom_forward

                if MENDED:
                    outputs = checkpoint(
                        create_custom_forward(layer),
                        hidden_states,
                        mask,
                        None,
                        output_attentions,
                        None,
                        is_mem,
                        last_section,
                        use_reentrant=False,
                    )
                else:
                    outputs = checkpoint(
                        create_custom_forward(layer),
                        hidden_states,
                        mask,
                        None,
                        is_mem,
                        last_section,
                        use_reentrant=False,
                    )
            else:
                outputs = layer(
                    hidden_states,
                    attention_mask=mask,
                    output_attentions=output_attentions,
                    is_mem=is_mem,
                    last_section_mask=last_section,
                )
            hidden_states = outputs[0]
        return hidden_states


def make():
    torch.manual_seed(0)
    model = LlamaModel(PreTrainedConfig()).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model, {"input_ids": torch.arange(24).reshape(2, 12) % 7}


def symptom():
    return error(lambda: train(make, steps=2))


if __name__ == "__main__":
    train(make)
