"""A dict through which layers share keys and values is bound into the function of every layer's checkpoint.

Each checkpoint keeps its function for the recompute, with it the dict, and with that what all layers have put there.
Their graphs lead back to the checkpoints, which is a cycle that only a backward opens: a step without one leaks.
"""

import gc
import weakref
from itertools import count
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from benchmarks.faults.script import STEPS, number

FAULT = {
    "source": "https://github.com/axolotl-ai-cloud/axolotl/commit/e562e149cecf5826e83ecf3a086949583bf25b28",
    "kind": "cache written",
    "saw": "memory grows by 0.47 GiB a step until there is none",
    "right": "the dict goes another way than through the checkpoint, and no checkpoint holds it",
    "cause": ["CKPT008", "shared_kv_states", "container"],
    "cure": "",
}
MENDED = False


class SideChannel(dict):
    """What layers share in one forward; `opened` finds it by number, as long as the graph of the loss holds it."""

    numbers, opened = count(), WeakValueDictionary()


def hold(loss, shared_kv_states):
    if loss.requires_grad:
        loss.grad_fn.metadata["shared"] = shared_kv_states


class SharedKVAttention(nn.Module):
    def __init__(self, width, index, source):
        super().__init__()
        self.index, self.source = index, source
        self.q_proj, self.o_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.kv_proj = nn.Linear(width, 2 * width, bias=False) if source == index else None

    def forward(self, hidden_states, attention_mask, shared_kv_states):
        if self.kv_proj is not None:
            shared_kv_states[self.index] = self.kv_proj(hidden_states).chunk(2, -1)
        key, value = shared_kv_states[self.source]
        scores = self.q_proj(hidden_states) @ key.transpose(1, 2) + attention_mask
        return self.o_proj(scores.softmax(-1) @ value)


class TextDecoderLayer(GradientCheckpointingLayer):
    def __init__(self, width, index, source):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.self_attn = SharedKVAttention(width, index, source)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, hidden_states, attention_mask=None, shared_kv_states=None, channel=None):
        if MENDED:
            shared_kv_states = SideChannel.opened[channel]
        hidden_states = hidden_states + self.self_attn(self.norm(hidden_states), attention_mask, shared_kv_states)
        return hidden_states + self.mlp(hidden_states)


class TextModel(PreTrainedModel):
    config_class = PreTrainedConfig
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(32, 16)
        self.layers = nn.ModuleList(TextDecoderLayer(16, index, min(index, 1)) for index in range(4))
        self.lm_head = nn.Linear(16, 32)
        self.post_init()

    def forward(self, input_ids, labels):
        length = input_ids.shape[1]
        mask = torch.full((length, length), float("-inf")).triu(1)
        hidden_states = self.embed_tokens(input_ids)
        shared_kv_states = SideChannel() if MENDED else {}
        if MENDED:
            channel = next(SideChannel.numbers)
            SideChannel.opened[channel] = shared_kv_states
        for layer in self.layers:
            if MENDED:
                hidden_states = layer(hidden_states, attention_mask=mask, channel=channel)
            else:
                hidden_states = layer(hidden_states, attention_mask=mask, shared_kv_states=shared_kv_states)
        loss = F.cross_entropy(self.lm_head(hidden_states).flatten(0, 1), labels.flatten())
        if MENDED:
            hold(loss, shared_kv_states)
        return loss


MODES = ["non_reentrant"]


def make():
    torch.manual_seed(0)
    model = TextModel(PreTrainedConfig()).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    ids = torch.randint(32, (2, 8))
    return model, {"input_ids": ids, "labels": ids.roll(-1, 1)}


def losses():
    model, batch = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    history = []
    for step in range(STEPS):
        labels = torch.full_like(batch["labels"], -100) if step % 4 == 3 else batch["labels"]
        loss = model(batch["input_ids"], labels)
        print("step", step, "loss", loss.item(), flush=True)
        if not loss.isfinite():  # a batch in which nothing is to be learned
            continue
        history.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return history


def symptom():
    made = []
    first = SharedKVAttention.forward

    def watched(self, hidden_states, attention_mask, shared_kv_states):
        output = first(self, hidden_states, attention_mask, shared_kv_states)
        made.append(weakref.ref(shared_kv_states[self.source][0]))
        return output

    SharedKVAttention.forward = watched
    losses()
    SharedKVAttention.forward = first
    gc.collect()
    alive = {id(key) for ref in made if (key := ref()) is not None}
    return number("keys alive after the training, of more than one step", max(len(alive) - 2, 0), 0)


if __name__ == "__main__":
    losses()
