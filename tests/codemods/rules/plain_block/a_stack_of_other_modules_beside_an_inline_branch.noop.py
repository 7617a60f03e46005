# CKPT001 info | class FooFeed | checkpoints other modules by hand, and `wrap_blocks` takes these
# CKPT002 info | if self.gradient_checkpointing and self.training | it works as it is
# file: toy.py
from torch import nn
from transformers import PreTrainedModel


class FooLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn = FooAttention(config)

    def forward(self, hidden_states):
        return self.self_attn(hidden_states)


class FooFeed(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.up = nn.Linear(4, 16)
        self.down = nn.Linear(16, 4)

    def forward(self, hidden_states):
        return hidden_states + self.down(self.up(hidden_states))

class FooModel(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer(config) for _ in range(config.num_hidden_layers)])
        self.feeds = nn.ModuleList([FooFeed(config) for _ in range(config.num_hidden_layers)])

    def forward(self, hidden_states):
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states)
            else:
                hidden_states = layer(hidden_states)
        for feed in self.feeds:
            hidden_states = feed(hidden_states)
        return hidden_states
