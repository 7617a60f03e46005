# CKPT003 unknown | layer(**kwargs) | `**` may pass hidden_states
# CKPT003 unknown | layer(*inputs | cannot be determined
# CKPT003 unknown | layer(hidden_states, 1, 2, 3, 4, 5, 6) | more positional arguments than the block's forward
# prelude: cached


class FooModel:
    def forward(self, hidden_states, attention_mask=None, **kwargs):
        for layer in self.layers:
            hidden_states = layer(**kwargs)
            hidden_states = layer(*inputs, attention_mask=attention_mask)
            hidden_states = layer(hidden_states, 1, 2, 3, 4, 5, 6)
        return hidden_states
