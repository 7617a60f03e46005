# CKPT001 safe | class FooLayer(Module, ModuleMixin)
from torch.nn import Module, ModuleList

from ...modeling_utils import PreTrainedModel


class FooAttention(Module):
    pass


class ModuleMixin:
    pass


class FooLayer(Module, ModuleMixin):
    def __init__(self, config):
        super().__init__()
        self.self_attn = FooAttention()

    def forward(self, hidden_states, attention_mask=None):
        return hidden_states


class FooModel(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.layers = ModuleList([FooLayer(config) for _ in range(4)])

    def forward(self, hidden_states, attention_mask=None):
        for layer in self.layers:
            hidden_states = layer(hidden_states, attention_mask)
        return hidden_states
