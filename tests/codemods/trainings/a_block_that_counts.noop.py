# trains: 1 | 1
# CKPT001 unsafe | class FooLayer | depends on `self.calls` and changes it
# prelude: trained

class FooLayer:
    def __init__(self):
        super().__init__()
        self.self_attn = FooAttention()
        self.calls = 0

    def forward(self, hidden_states, encoder_hidden_states=None):
        self.calls += 1
        return hidden_states + self.self_attn(hidden_states) * (self.calls % 2 + 1)


class FooModel:
    def forward(self, hidden_states):
        for layer in self.layers:
            layer.calls = 0
            hidden_states = layer(hidden_states)
        return hidden_states
