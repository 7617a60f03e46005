# prelude: cached

class FooModel:
    def forward(self, hidden_states, attention_mask=None, past_key_values=None, encoder_hidden_states=None, **kwargs):
        for layer in self.layers:
            hidden_states = layer(hidden_states, attention_mask=attention_mask, past_key_values=past_key_values)
        return hidden_states
