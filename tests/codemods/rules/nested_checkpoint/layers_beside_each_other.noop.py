# prelude: gcl

class FooInner(GradientCheckpointingLayer):
    def __init__(self, config):
        super().__init__()
        self.self_attn = FooAttention()

    def forward(self, hidden_states, attention_mask=None):
        return hidden_states

class FooLayer: ...

class FooModel:
    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer(config), FooInner(config)])
