# CKPT007 unsafe | layer( | `earlier`
# prelude: gcl

class FooLayer:
    def forward(self, hidden_states, earlier=None):
        return hidden_states

class FooModel:
    def forward(self, hidden_states, attention_mask=None):
        earlier = []
        for layer in self.layers:
            hidden_states = layer(hidden_states, earlier)
            earlier.append(hidden_states)
        return hidden_states
