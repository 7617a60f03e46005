"""A transformer block takes its recomputing branch in evaluation too, which knows nothing of inference parameters.

`recompute_granularity` is asked without `self.training`. Decoding token by token goes through the branch that passes
no cache on, and each token sees itself alone.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import STEPS, cured, loss_of, number

FAULT = {
    "source": "https://github.com/NVIDIA/Megatron-LM/commit/6fdbfa73cdd2e8cdbf7d4b5a00255ffecb59041c",
    "kind": "mode",
    "saw": "evaluation and generation during training run through the checkpointed forward",
    "right": "only training recomputes",
    "cause": ["self.training", "inference_params", "evaluation", "eval mode"],
    "cure": "",
    "held_out": True,
}
MENDED = False


class InferenceParams:
    def __init__(self):
        self.offset = 0
        self.key_value = {}


class TransformerLayer(nn.Module):
    def __init__(self, number, hidden, heads=2):
        super().__init__()
        self.layer_number, self.heads = number, heads
        self.input_layernorm, self.pre_mlp_layernorm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.linear_qkv, self.linear_proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.mlp = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))

    def forward(self, x, mask, inference_params=None):
        q, k, v = self.linear_qkv(self.input_layernorm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if inference_params is not None:
            if self.layer_number in inference_params.key_value:
                past_k, past_v = inference_params.key_value[self.layer_number]
                k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
            inference_params.key_value[self.layer_number] = k, v
        out = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.linear_proj(out.transpose(1, 2).flatten(2))
        return x + self.mlp(self.pre_mlp_layernorm(x))


class TransformerBlock(nn.Module):
    def __init__(self, hidden, layers, recompute_granularity):
        super().__init__()
        self.layers = nn.ModuleList(TransformerLayer(number, hidden) for number in range(layers))
        self.recompute_granularity = recompute_granularity

    def _checkpointed_forward(self, x, mask):
        def custom(start, end):
            def custom_forward(x, mask):
                for layer in self.layers[start:end]:
                    x = layer(x, mask)
                return x

            return custom_forward

        for start in range(0, len(self.layers), 2):
            x = checkpoint(custom(start, start + 2), x, mask, use_reentrant=True)
        return x

    def forward(self, x, mask, inference_params=None):
        recompute = self.recompute_granularity == "full"
        if MENDED:
            recompute = recompute and self.training
        if recompute:
            return self._checkpointed_forward(x, mask)
        for layer in self.layers:
            x = layer(x, mask, inference_params)
        return x


class GPT(nn.Module):
    def __init__(self, hidden=16, vocabulary=32):
        super().__init__()
        self.word, self.position = nn.Embedding(vocabulary, hidden), nn.Embedding(16, hidden)
        self.decoder = TransformerBlock(hidden, 4, "full")
        self.output_layer = nn.Linear(hidden, vocabulary)

    def forward(self, ids, labels=None, inference_params=None):
        offset = inference_params.offset if inference_params else 0
        x = self.word(ids) + self.position(torch.arange(offset, offset + ids.size(1)))
        mask = torch.ones(ids.size(1), ids.size(1), dtype=torch.bool).tril() if ids.size(1) > 1 else None
        logits = self.output_layer(self.decoder(x, mask, inference_params))
        if inference_params:
            inference_params.offset += ids.size(1)
        return logits if labels is None else nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


@torch.no_grad()
def decode(model, ids):
    """Return the logits of each token, one token at a time, as in generation."""
    model.eval()
    params = InferenceParams()
    logits = torch.cat([model(token, inference_params=params) for token in ids.split(1, 1)], 1)
    model.train()
    return logits


def off(model):
    model.decoder.recompute_granularity = None


def switch(model, mode):
    model.decoder.recompute_granularity = None if mode is None else "full"


def make():
    torch.manual_seed(0)
    ids = torch.randint(32, (2, 13))
    return GPT(), {"ids": ids[:, :-1], "labels": ids[:, 1:]}


def symptom():
    model, batch = make()
    cured(model)
    whole = model(batch["ids"])
    error = (decode(model, batch["ids"]) - whole).abs().max() / whole.abs().max()
    return number("error of a decoded logit", error.item(), 0.0, 1e8)


def losses():
    model, batch = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    seen = []
    for step in range(STEPS):
        loss = loss_of(model(**batch))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(loss.item())
        print("step", step, "loss", seen[-1], flush=True)
        if step % 10 == 9:
            right = (decode(model, batch["ids"]).argmax(-1) == batch["labels"]).float().mean()
            print("step", step, "accuracy when decoding", right.item(), flush=True)
    return seen


if __name__ == "__main__":
    losses()
