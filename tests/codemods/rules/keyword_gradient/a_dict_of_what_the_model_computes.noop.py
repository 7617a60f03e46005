# CKPT003 unsafe | layer(hidden_states, **arguments) | tensors with gradient by `**arguments`
# prelude: gcl

class FooLayer:
    def forward(self, hidden_states, attention_mask=None, scale=None):
        return hidden_states * scale

class FooModel:
    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer(config) for _ in range(config.num_hidden_layers)])
        self.gamma = nn.Linear(4, 4)

    def forward(self, hidden_states, attention_mask=None, **kwargs):
        arguments = dict(attention_mask=attention_mask, scale=self.gamma(hidden_states))
        for layer in self.layers:
            hidden_states = layer(hidden_states, **arguments)
            hidden_states = layer(hidden_states, attention_mask, **kwargs)
        return hidden_states
