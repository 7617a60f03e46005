# CKPT001 info | class FooLayer | commented out in FooModel.forward: see why before FooLayer is checkpointed; not repaired
# file: setup.py
REQUIRES = ["transformers==4.46.0"]
# file: modeling_foo.py
from torch import nn
from transformers import PreTrainedModel


class FooLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn = FooAttention(config)

    def forward(self, hidden_states):
        return self.self_attn(hidden_states)


class FooModel(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer(config)])

    def forward(self, hidden_states):
        for layer in self.layers:
            # hidden_states = checkpoint(layer, hidden_states)
            hidden_states = layer(hidden_states)
        return hidden_states
