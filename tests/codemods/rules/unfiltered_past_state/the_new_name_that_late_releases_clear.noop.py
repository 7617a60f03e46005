# prelude: gcl

class FooLayer:
    def forward(self, hidden_states, cache=None):
        return hidden_states

class FooModel:
    def forward(self, hidden_states, attention_mask=None, cache=None, encoder_hidden_states=None, **kwargs):
        for layer in self.layers:
            hidden_states = layer(hidden_states, cache=cache)
        return hidden_states
