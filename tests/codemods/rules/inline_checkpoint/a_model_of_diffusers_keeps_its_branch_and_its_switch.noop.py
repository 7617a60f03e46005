# CKPT002 info | if | nothing of transformers holds FooModel, so nothing would switch
# prelude: plain

from diffusers import ModelMixin
from torch import nn
from transformers import CLIPTextModel


class FooModel(ModelMixin):
    def __init__(self, config):
        super().__init__()
        self.text = CLIPTextModel(config)
        self.layers = nn.ModuleList([FooLayer(config) for _ in range(4)])

    def _set_gradient_checkpointing(self, module, value=False):
        module.gradient_checkpointing = value

    def forward(self, hidden_states, attention_mask=None):
        for layer in self.layers:
            if self.training and self.gradient_checkpointing:
                hidden_states = torch.utils.checkpoint.checkpoint(layer, hidden_states, attention_mask)
            else:
                hidden_states = layer(hidden_states, attention_mask)
        return hidden_states
