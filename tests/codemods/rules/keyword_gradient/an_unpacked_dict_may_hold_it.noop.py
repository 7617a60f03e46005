# CKPT003 unknown | layer(**kwargs) | `**` may pass hidden_states
# prelude: cached

class FooModel:
    def forward(self, hidden_states, attention_mask=None, past_key_values=None, encoder_hidden_states=None, **kwargs):
        for layer in self.layers:
            hidden_states = layer(**kwargs)
        return hidden_states
