"""Prompts come from a context that surrounds `forward`: when a layer is recomputed, there is none.

The wrapper of `forward` pops the context from a stack when the forward returns. The recompute asks for it in the
backward.
"""

import contextlib

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from benchmarks.faults.script import cured, error, loss_of, train

FAULT = {
    "source": "https://github.com/adapter-hub/adapters/issues/732",
    "kind": "adapters",
    "saw": "AttributeError: 'NoneType' object has no attribute, in the backward of a prefix tuning",
    "right": "the recompute enters the context of its forward",
    "cause": ["ForwardContext", "context_fn", "outside of forward", "global state"],
    "cure": "",
    "held_out": True,
}
MENDED = False
MODES = ["non_reentrant"]


stack = []


class ForwardContext(contextlib.AbstractContextManager):
    def __init__(self, prefixes):
        self.prefixes = prefixes

    def __enter__(self):
        stack.append(self)

    def __exit__(self, *_):
        stack.pop()

    @staticmethod
    def current():
        return stack[-1] if stack else None


class PrefixLayer(GradientCheckpointingLayer):
    def __init__(self, dim, number):
        super().__init__()
        self.number = number
        self.norm = nn.LayerNorm(dim)
        self.query, self.key, self.value = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, hidden_states):
        x = self.norm(hidden_states)
        prefix = ForwardContext.current().prefixes[self.number].expand(len(x), -1, -1)
        keys, values = torch.cat([prefix, self.key(x)], 1), torch.cat([prefix, self.value(x)], 1)
        return hidden_states + nn.functional.scaled_dot_product_attention(self.query(x), keys, values)


class TinyConfig(PretrainedConfig):
    model_type = "tiny_prefix"


class PrefixModel(PreTrainedModel):
    config_class = TinyConfig
    supports_gradient_checkpointing = True
    _input_embed_layer = "embeddings"

    def __init__(self, config, dim=16):
        super().__init__(config)
        self.embeddings = nn.Embedding(32, dim)
        self.layer = nn.ModuleList(PrefixLayer(dim, number) for number in range(2))
        self.classifier = nn.Linear(dim, 3)
        self.prefix_tuning = nn.Parameter(torch.randn(2, 4, dim))
        self.post_init()

    def forward(self, input_ids, labels):
        with ForwardContext(self.prefix_tuning):
            hidden_states = self.embeddings(input_ids)
            for layer in self.layer:
                hidden_states = layer(hidden_states)
            return nn.functional.cross_entropy(self.classifier(hidden_states.mean(1)), labels)


def contexts():
    return contextlib.nullcontext(), ForwardContext(ForwardContext.current().prefixes)


def make():
    torch.manual_seed(0)
    model = PrefixModel(TinyConfig())
    model.requires_grad_(False)
    model.prefix_tuning.requires_grad_()
    model.classifier.requires_grad_()
    if MENDED:
        model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": contexts})
    else:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    return model, {"input_ids": torch.arange(20).view(4, 5), "labels": torch.tensor([0, 1, 2, 0])}


def step():
    model, batch = make()
    cured(model)
    loss_of(model(**batch)).backward()


def symptom():
    return error(step)


if __name__ == "__main__":
    train(make)
