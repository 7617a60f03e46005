"""What blocks, their arguments and the code around them do in trainings of real models."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.fuzz.model import BATCH, WIDTH, Feature, linear, scaled

# layers


class SelfAttention(Feature):
    """Causal attention."""

    def build(self, block: Any, index: int) -> None:
        block.project = nn.Linear(WIDTH, 3 * WIDTH)

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        query, key, values = block.project(hidden).chunk(3, dim=-1)
        return hidden + functional.scaled_dot_product_attention(query, key, values, is_causal=True)


class Norm(Feature):
    """A normalisation, over positions or over the batch: the second has statistics that every call moves."""

    def build(self, block: Any, index: int) -> None:
        block.norm = nn.LayerNorm(WIDTH) if self.variant else nn.BatchNorm1d(WIDTH)

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return block.norm(hidden) if self.variant else block.norm(hidden.transpose(1, 2)).transpose(1, 2)


class Dropout(Feature):
    """Dropout, as a layer or as noise drawn in the forward."""

    def build(self, block: Any, index: int) -> None:
        block.dropout = nn.Dropout(0.3)

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return block.dropout(hidden) if self.variant else hidden * (1 + 0.3 * torch.rand_like(hidden))


class LayerDrop(Feature):
    """A part that Python's generator leaves out of half of the calls."""

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return torch.tanh(hidden) if random.random() < 0.5 else hidden


class Experts(Feature):
    """A router that sends each token to its best two experts, and moves their biases against the load, or does not."""

    def build(self, block: Any, index: int) -> None:
        block.router = nn.Linear(WIDTH, 4)
        block.experts = nn.ModuleList(linear() for _ in range(4))
        block.register_buffer("bias", torch.zeros(4))

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        tokens = hidden.reshape(-1, hidden.shape[-1])
        weights, chosen = torch.topk((block.router(tokens) + block.bias).softmax(-1), 2)
        if self.variant:
            load = chosen.reshape(-1).bincount(minlength=4)
            block.bias -= 0.2 * torch.sign(load - load.float().mean())
        result = torch.zeros_like(tokens)
        for number, expert in enumerate(block.experts):
            token, place = torch.where(chosen == number)
            change = torch.tanh(expert(tokens[token])) * weights[token, place, None]
            result = result.index_add(0, token, change.to(result.dtype))
        return hidden + result.view_as(hidden)


class InPlace(Feature):
    """Writes in place: into a tensor of the block's own, or into its argument."""

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        own = hidden * 1.1 if self.variant else hidden
        own.add_(0.01)
        return functional.relu(own, inplace=True) if self.variant else own


# state


class Calls(Feature):
    """A number on the block that counts its calls, as for a schedule, and changes what it computes, or does not."""

    def build(self, block: Any, index: int) -> None:
        block.calls = 0

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        block.calls += 1
        return scaled(hidden, block.calls) if self.variant else hidden


# weights and hooks


class SameBlockTwice(Feature):
    """The first block is also the last."""

    def attach(self, model: Any) -> None:
        model.layers.append(model.layers[0])


class Adapter(Feature):
    """A part of each block is frozen, beside an adapter of low rank that is trained, as LoRA has it."""

    def build(self, block: Any, index: int) -> None:
        block.up.requires_grad_(False)
        block.adapter = nn.Sequential(nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False))

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return hidden + block.adapter(hidden)


class FrozenBlock(Feature):
    """The first block is frozen, with everything before it or without."""

    def attach(self, model: Any) -> None:
        model.layers[0].requires_grad_(False)
        if self.variant:
            model.embed.requires_grad_(False)


class AutocastAround(Feature):
    """The model's forward, without its backward, in bfloat16."""

    autocast = True


class ForwardHook(Feature):
    """A forward hook on the block, or on a part of it, changes what that returns."""

    def attach(self, model: Any) -> None:
        for layer in dict.fromkeys(model.layers):
            (layer.up if self.variant else layer).register_forward_hook(self._hook)

    def _hook(self, module: nn.Module, args: Any, output: Any) -> Any:
        return output * 1.1 if isinstance(output, Tensor) else None


# arguments


class Streams(Feature):
    """A tensor of a layer of the model, beside the hidden states in a list, or in a dictionary with other things."""

    argument = "streams"

    def attach(self, model: Any) -> None:
        model.other = linear()

    def value(self, model: Any, hidden: Tensor) -> Any:
        stream = torch.sin(model.other(hidden))
        return [stream, hidden] if self.variant else {"a": stream, "b": (hidden.detach(), None), 3: "c"}

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        first, second = value if self.variant else (value["a"], value["b"][0])
        return hidden * torch.cos(first) * torch.cos(second)


class SharedKeys(Feature):
    """A dictionary through which the first block gives its keys to the others."""

    argument = "shared"

    def build(self, block: Any, index: int) -> None:
        block.index = index
        block.keys = linear()

    def begin(self, model: Any) -> None:
        self.given = {}

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        if block.index == 0:
            value["keys"] = block.keys(hidden)
        return hidden * torch.cos(value["keys"])


class Collector(Feature):
    """A list to which every block appends its hidden states, detached or not; the model uses them."""

    argument = "collected"

    def begin(self, model: Any) -> None:
        self.given = []

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        value.append(hidden.detach() if self.variant else hidden * 1)
        return hidden

    def added_loss(self, model: Any) -> Tensor | None:
        return torch.stack(self.given).square().mean()


class StoredLoss(Feature):
    """A loss of each block, on the block, where the model reads it."""

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        block.stored_loss = torch.sin(hidden).mean()
        return hidden

    def added_loss(self, model: Any) -> Tensor | None:
        return torch.stack([layer.stored_loss for layer in model.layers]).sum()


# caches


class Cache:
    """Keys by layer, called as the base class of transformers is."""

    def __init__(self, layers: dict[int, Tensor]) -> None:
        self.layers = layers

    def update(self, keys: Tensor, layer: int) -> Tensor:
        """Return the keys of a layer, old and new."""
        before = self.layers.get(layer)
        self.layers[layer] = keys if before is None else torch.cat([before, keys], 1)
        return self.layers[layer]

    def get_seq_length(self, layer: int = 0) -> int:
        """Return how many keys a layer has."""
        return self.layers[layer].shape[1] if layer in self.layers else 0


class EmptyCache(Feature):
    """An empty cache that a block writes its keys into; the result is the same without one."""

    argument = "past_key_values"

    def build(self, block: Any, index: int) -> None:
        block.layer_idx = index
        block.cached = linear()

    def begin(self, model: Any) -> None:
        self.given = Cache({})

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        keys = block.cached(hidden)
        if value is not None:
            keys = value.update(keys, block.layer_idx)
        return hidden * torch.cos(keys.mean(1, keepdim=True))


class LearnedPrefix(EmptyCache):
    """A cache that begins with keys of its own for each layer, which are trained, as in prefix tuning."""

    def attach(self, model: Any) -> None:
        model.prefix = nn.Parameter(torch.randn(len(model.layers), 1, 2, WIDTH))

    def begin(self, model: Any) -> None:
        keys = torch.tanh(model.prefix)
        self.given = Cache({layer: keys[layer].expand(BATCH, -1, -1) for layer in range(len(keys))})


# results


class TupleResult(Feature):
    """A block returns a tuple: its hidden states, nothing, and another tensor."""

    in_tuple = True


FEATURES: dict[str, type[Feature]] = {
    kind.__name__: kind
    for kind in (
        *(SelfAttention, Norm, Dropout, LayerDrop, Experts, InPlace),
        *(Calls, SameBlockTwice, Adapter, FrozenBlock, AutocastAround, ForwardHook),
        *(Streams, SharedKeys, Collector, StoredLoss),
        *(EmptyCache, LearnedPrefix, TupleResult),
    )
}
"""The features by name."""
ALONE = {"EmptyCache", "LearnedPrefix", "SameBlockTwice"}
"""Features of which a model has one at most: the keys of a block at two places would be those of one layer."""
