# CKPT001 unsafe | class FooLayer(nn.Module) | by position, which is not repaired: its blocks (FooLayer, FooOtherLayer)
# CKPT001 unsafe | class FooOtherLayer(nn.Module) | which is not repaired
# CKPT003 unknown | layer(hidden_states
# CKPT004 unsafe | past_key_values
# prelude: plain

class FooLayer:
    def forward(self, hidden_states, layer_past=None):
        return hidden_states

class FooOtherLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn = FooAttention()

    def forward(self, hidden_states, attention_mask=None):
        return hidden_states

class FooModel:
    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer(config) if config.one else FooOtherLayer(config) for _ in range(config.num_hidden_layers)])

    def forward(self, hidden_states, attention_mask=None, past_key_values=None, encoder_hidden_states=None):
        for layer in self.layers:
            hidden_states = layer(hidden_states, past_key_values)
        return hidden_states
