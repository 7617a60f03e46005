# CKPT001 unsafe | class FooLayer | FooModel gives FooLayer tensors with gradient by `**arguments`
# CKPT003 unsafe | layer(hidden_states, **arguments) | by `**arguments`
# prelude: plain

class FooLayer:
    def forward(self, hidden_states, attention_mask=None, scale=None):
        return self.self_attn(hidden_states) * scale

class FooModel:
    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer(config) for _ in range(config.num_hidden_layers)])
        self.gamma = nn.Linear(4, 4)

    def forward(self, hidden_states, attention_mask=None):
        arguments = {"attention_mask": attention_mask, "scale": self.gamma(hidden_states)}
        for layer in self.layers:
            hidden_states = layer(hidden_states, **arguments)
        return hidden_states
