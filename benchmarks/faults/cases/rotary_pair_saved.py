"""A checkpoint function of one's own saves its arguments for the backward, and one of them is a pair of tensors.

`save_for_backward` takes tensors or None. The pair came with a model that has local and global rotary embeddings.
"""

import torch
from torch import nn

from benchmarks.faults.script import Switched, error, train

FAULT = {
    "source": "https://github.com/NVIDIA/Megatron-LM/commit/acc7e644572b1e503545803b016bd1b8b2dda717",
    "kind": "arguments lost",
    "saw": "TypeError: save_for_backward can only save variables, but argument 2 is of type tuple",
    "right": "the pair is unpacked into arguments, and packed again in the checkpointed function",
    "cause": ["tuple", "CKPT007", "container"],
    "cure": "",
}
MENDED = False


class CheckpointFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run_function, *args):
        ctx.run_function = run_function
        ctx.save_for_backward(*args)
        with torch.no_grad():
            return run_function(*args)

    @staticmethod
    def backward(ctx, grad):
        inputs = [x if x is None else x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
        with torch.enable_grad():
            output = ctx.run_function(*inputs)
        torch.autograd.backward(output, grad)
        return (None, *(x if x is None else x.grad for x in inputs))


class TransformerLayer(nn.Module):
    def __init__(self, number, width=16):
        super().__init__()
        self.local = number % 2
        self.norm = nn.LayerNorm(width)
        self.linear_qkv, self.linear_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, hidden_states, attention_mask, rotary_pos_emb):
        angles = rotary_pos_emb[self.local]
        q, k, v = self.linear_qkv(self.norm(hidden_states)).chunk(3, -1)
        q, k = (t * angles.cos() + torch.cat([-t[..., 8:], t[..., :8]], -1) * angles.sin() for t in (q, k))
        return hidden_states + self.linear_proj((q @ k.transpose(1, 2) + attention_mask).softmax(-1) @ v)


class TransformerBlock(Switched):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.layers = nn.ModuleList(TransformerLayer(number) for number in range(2))

    def _checkpointed_forward(self, hidden_states, attention_mask, rotary_pos_emb):
        def custom(hidden_states, attention_mask, *rotary):
            pair = rotary if MENDED else rotary[0]
            for layer in self.layers:
                hidden_states = layer(hidden_states, attention_mask, pair)
            return hidden_states

        if MENDED:
            return CheckpointFunction.apply(custom, hidden_states, attention_mask, *rotary_pos_emb)
        return CheckpointFunction.apply(custom, hidden_states, attention_mask, rotary_pos_emb)

    def forward(self, ids):
        hidden_states, length = self.embedding(ids), ids.shape[1]
        mask = torch.full((length, length), float("-inf")).triu(1)
        steps = torch.arange(length)[:, None] * torch.ones(16)
        rotary_pos_emb = (steps / 10, steps / 100)
        if self.gradient_checkpointing and self.training:
            return self._checkpointed_forward(hidden_states, mask, rotary_pos_emb)
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask, rotary_pos_emb)
        return hidden_states


def make():
    torch.manual_seed(0)
    return TransformerBlock(), {"ids": torch.randint(32, (2, 8))}


def symptom():
    return error(lambda: train(make, steps=2))


if __name__ == "__main__":
    train(make)
