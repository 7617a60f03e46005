# CKPT003 unknown | layer(**kwargs) | `**` may pass hidden_states
# CKPT003 unknown | layer(*inputs | cannot be determined
# prelude: cached


class FooModel:
    def forward(self, hidden_states, attention_mask=None, **kwargs):
        for layer in self.layers:
            hidden_states = layer(**kwargs)
            hidden_states = layer(*inputs, attention_mask=attention_mask)
        return hidden_states
