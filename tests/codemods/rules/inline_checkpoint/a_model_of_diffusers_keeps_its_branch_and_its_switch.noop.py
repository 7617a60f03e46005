# CKPT002 unsafe | if | the file uses nothing from transformers, so nothing would switch
from diffusers import ConfigMixin, ModelMixin
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import CLIPTextModel


class FooAttention(nn.Module):
    pass


class FooLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn = FooAttention()

    def forward(self, hidden_states, attention_mask=None):
        return hidden_states


class FooModel(ModelMixin, ConfigMixin):
    def __init__(self, config):
        super().__init__()
        self.text = CLIPTextModel(config)
        self.layers = nn.ModuleList([FooLayer(config) for _ in range(4)])

    def _set_gradient_checkpointing(self, module, value=False):
        if hasattr(module, "gradient_checkpointing"):
            module.gradient_checkpointing = value

    def forward(self, hidden_states, attention_mask=None):
        for layer in self.layers:
            if self.training and self.gradient_checkpointing:
                hidden_states = checkpoint(layer, hidden_states, attention_mask, use_reentrant=False)
            else:
                hidden_states = layer(hidden_states, attention_mask)
        return hidden_states
