# CKPT003 unknown | layer(*inputs
# prelude: cached


class FooModel:
    def forward(self, hidden_states, attention_mask=None, past_key_values=None):
        for layer in self.layers:
            hidden_states = layer(hidden_states)
            hidden_states = layer(hidden_states, attention_mask, None)
            hidden_states = layer(hidden_states, attention_mask, past_key_values=past_key_values)
            hidden_states = layer(hidden_states, attention_mask, past_key_values)  # ckpt: ignore[CKPT004] read only
            hidden_states = layer(*inputs, past_key_values)
        return hidden_states
