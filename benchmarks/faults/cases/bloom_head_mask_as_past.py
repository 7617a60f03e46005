"""The checkpointed call of a block leaves out the past: the head mask stands in its place.

Arguments go by position there, and `layer_past` comes before `head_mask` in the block's signature.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig, PreTrainedModel

from benchmarks.faults.script import error, gradients, train

FAULT = {
    "source": "https://github.com/huggingface/transformers/pull/21655",
    "kind": "arguments lost",
    "saw": "the head mask was handed to the layer as its past",
    "right": "None is passed for layer_past",
    "cause": ["CKPT002", "layer_past", "head_mask"],
    "cure": "apply",
}
MENDED = False
MODES = ("reentrant",)


class BloomAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query_key_value, self.dense = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, hidden_states, alibi, attention_mask, layer_past=None, head_mask=None, use_cache=False):
        q, k, v = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in self.query_key_value(hidden_states).chunk(3, -1)
        )
        if layer_past is not None:
            past_key, past_value = layer_past
            k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
        probabilities = (q @ k.transpose(-1, -2) + alibi + attention_mask).softmax(-1)
        if head_mask is not None:
            probabilities = probabilities * head_mask
        return self.dense((probabilities @ v).transpose(1, 2).flatten(2)), (k, v) if use_cache else None


class BloomBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.input_layernorm = nn.LayerNorm(width)
        self.self_attention = BloomAttention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, hidden_states, alibi, attention_mask, layer_past=None, head_mask=None, use_cache=False):
        normed = self.input_layernorm(hidden_states)
        mixed, present = self.self_attention(normed, alibi, attention_mask, layer_past, head_mask, use_cache)
        hidden_states = hidden_states + mixed
        return hidden_states + self.mlp(hidden_states), present


class BloomModel(PreTrainedModel):
    config_class = PreTrainedConfig
    supports_gradient_checkpointing = True

    def __init__(self, config, width=16, heads=4, layers=3):
        super().__init__(config)
        self.word_embeddings = nn.Embedding(32, width)
        self.h = nn.ModuleList(BloomBlock(width, heads) for _ in range(layers))
        self.register_buffer("slopes", 2.0 ** -torch.arange(heads).view(1, heads, 1, 1))
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self):
        return self.word_embeddings

    def forward(self, input_ids, head_mask=None, past_key_values=None, use_cache=False):
        hidden_states = self.word_embeddings(input_ids)
        length = hidden_states.shape[1]
        alibi = self.slopes * torch.arange(length)
        attention_mask = torch.full((length, length), float("-inf")).triu(1)
        head_mask = [None] * len(self.h) if head_mask is None else head_mask[:, None, :, None, None]
        past_key_values = past_key_values or [None] * len(self.h)
        for i, (block, layer_past) in enumerate(zip(self.h, past_key_values, strict=True)):
            if self.gradient_checkpointing and self.training:

                def create_custom_forward(module):
                    def custom_forward(*inputs):
                        return module(*inputs, use_cache=False)

                    return custom_forward

                if MENDED:
                    outputs = checkpoint(
                        create_custom_forward(block),
                        hidden_states,
                        alibi,
                        attention_mask,
                        None,
                        head_mask[i],
                        use_reentrant=True,
                    )
                else:
                    outputs = checkpoint(
                        create_custom_forward(block),
                        hidden_states,
                        alibi,
                        attention_mask,
                        head_mask[i],
                        use_reentrant=True,
                    )
            else:
                outputs = block(
                    hidden_states,
                    alibi,
                    attention_mask,
                    layer_past=layer_past,
                    head_mask=head_mask[i],
                    use_cache=use_cache,
                )
            hidden_states = outputs[0]
        return hidden_states


def make():
    torch.manual_seed(0)
    model = BloomModel(PreTrainedConfig()).train()
    model.gradient_checkpointing_enable()
    head_mask = torch.ones(3, 4)
    head_mask[0, 1] = head_mask[2, 3] = 0
    return model, {"input_ids": torch.randint(32, (2, 8)), "head_mask": head_mask}


def symptom():
    return error(lambda: gradients(make))


if __name__ == "__main__":
    train(make)
