"""The checkpointed branch of a model with two streams keeps the pair that its block returns as one of them.

The plain branch unpacks context and image; from the second block on, the other one gets a tuple for a tensor.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import error, gradients, train

FAULT = {
    "source": "https://github.com/huggingface/diffusers/commit/3376252d71dc4d76a166e01614c0ea925a2f1e1a",
    "kind": "arguments lost",
    "saw": "TypeError in the second block, which got a tuple and not a tensor, as soon as checkpointing was on",
    "right": "both results of the checkpointed block are unpacked",
    "cause": ["CKPT002", "tuple", "unpack"],
    "cure": "wrap",
}
MENDED = False
MODES = ("non_reentrant",)


class JointTransformerBlock(nn.Module):
    def __init__(self, width, context_pre_only):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, 2, batch_first=True)
        self.ff = nn.Linear(width, width)
        self.ff_context = None if context_pre_only else nn.Linear(width, width)

    def forward(self, hidden_states, encoder_hidden_states, temb):
        both = self.norm(torch.cat([encoder_hidden_states, hidden_states], 1)) * (1 + temb)
        both = self.attn(both, both, both, need_weights=False)[0]
        context, image = both.split([encoder_hidden_states.shape[1], hidden_states.shape[1]], 1)
        hidden_states = hidden_states + self.ff(nn.functional.gelu(image))
        if self.ff_context is None:
            return None, hidden_states
        return encoder_hidden_states + self.ff_context(nn.functional.gelu(context)), hidden_states


class SD3Transformer2DModel(nn.Module):
    _supports_gradient_checkpointing = True

    def __init__(self, width=16):
        super().__init__()
        self.pos_embed, self.context_embedder = nn.Linear(4, width), nn.Linear(6, width)
        self.time_embed = nn.Linear(1, width)
        self.transformer_blocks = nn.ModuleList(JointTransformerBlock(width, index == 2) for index in range(3))
        self.proj_out = nn.Linear(width, 4)
        self.gradient_checkpointing = False

    def enable_gradient_checkpointing(self):
        self.gradient_checkpointing = True

    def forward(self, hidden_states, encoder_hidden_states, timestep):
        hidden_states = self.pos_embed(hidden_states)
        encoder_hidden_states = self.context_embedder(encoder_hidden_states)
        temb = self.time_embed(timestep).unsqueeze(1)
        for block in self.transformer_blocks:
            if self.training and self.gradient_checkpointing:

                def custom_forward(*inputs, block=block):
                    return block(*inputs)

                inputs = hidden_states, encoder_hidden_states, temb
                if MENDED:
                    encoder_hidden_states, hidden_states = checkpoint(custom_forward, *inputs, use_reentrant=False)
                else:
                    hidden_states = checkpoint(custom_forward, *inputs, use_reentrant=False)
            else:
                encoder_hidden_states, hidden_states = block(hidden_states, encoder_hidden_states, temb)
        return self.proj_out(hidden_states)


def make():
    torch.manual_seed(0)
    model = SD3Transformer2DModel()
    model.enable_gradient_checkpointing()
    batch = {"hidden_states": torch.randn(2, 9, 4), "encoder_hidden_states": torch.randn(2, 5, 6)}
    return model, {**batch, "timestep": torch.rand(2, 1)}


def off(model):
    model.gradient_checkpointing = False


def switch(model, mode):
    model.gradient_checkpointing = mode is not None


def symptom():
    return error(lambda: gradients(make, off))


if __name__ == "__main__":
    train(make)
