# CKPT001 info | class FooLayer | run_stage checkpoints what reads its stack
from torch import nn

from ...modeling_utils import PreTrainedModel


class FooLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn = FooAttention(config)

    def forward(self, hidden_states):
        return self.self_attn(hidden_states)


class FooDecoder(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer(config) for _ in range(config.num_hidden_layers)])
        self.gradient_checkpointing = False


def run_stage(self, hidden_states):
    decoder = self.decoder
    for layer in decoder.layers:
        hidden_states = decoder._gradient_checkpointing_func(layer.__call__, hidden_states)
    return hidden_states
