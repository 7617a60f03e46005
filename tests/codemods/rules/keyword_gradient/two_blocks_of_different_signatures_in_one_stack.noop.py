# CKPT003 unknown | layer( | different signatures
# CKPT003 unsafe | encoder_hidden_states=attention_mask
# prelude: gcl

class FooLayer:
    def forward(self, hidden_states, encoder_hidden_states=None):
        return hidden_states

class FooOther(GradientCheckpointingLayer):
    def __init__(self, config):
        super().__init__()
        self.self_attn = FooAttention()

    def forward(self, hidden_states, attention_mask=None, encoder_hidden_states=None):
        return hidden_states

class FooModel:
    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer(config), FooOther(config)])

    def forward(self, hidden_states, attention_mask=None):
        for layer in self.layers:
            hidden_states = layer(hidden_states, encoder_hidden_states=attention_mask)
        return hidden_states
