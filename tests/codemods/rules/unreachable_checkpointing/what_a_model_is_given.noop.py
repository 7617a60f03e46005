# CKPT009 unknown | class FooModel | chosen at run time
# CKPT009 unknown | class BarModel | chosen at run time
# CKPT009 unknown | class BazModel | chosen at run time
from torch import nn
from transformers import PreTrainedModel


class FooModel(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config, encoder):
        super().__init__(config)
        self.encoder = encoder
        self.pool = nn.MultiheadAttention(4, 4)

    def forward(self, hidden_states):
        return self.pool(self.encoder(hidden_states))


class BarModel(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.encoder, self.scale = config.make()
        self.pool = nn.MultiheadAttention(4, 4)

    def forward(self, hidden_states):
        return self.pool(self.encoder(hidden_states))


class BazModel(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config, model):
        super().__init__(config)
        self.layers = nn.ModuleList(model.layers)
        self.pool = nn.MultiheadAttention(4, 4)

    def forward(self, hidden_states):
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return self.pool(hidden_states)
