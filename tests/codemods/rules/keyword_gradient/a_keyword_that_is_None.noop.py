# prelude: cached

class FooModel:
    def forward(self, hidden_states, attention_mask=None, past_key_values=None, encoder_hidden_states=None, **kwargs):
        for layer in self.layers:
            hidden_states = layer(hidden_states, past_key_values=None)
        return hidden_states
