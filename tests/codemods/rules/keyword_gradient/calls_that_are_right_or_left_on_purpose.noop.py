# prelude: cached


class FooModel:
    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer(config)])
        self.other = nn.Identity()

    def forward(self, hidden_states, attention_mask=None, past_key_values=None):
        for layer in self.layers:
            hidden_states = layer(hidden_states, attention_mask)
            hidden_states = layer(hidden_states, attention_mask=attention_mask, past_key_values=past_key_values)
            hidden_states = layer(hidden_states, past_key_values=None)
            hidden_states = layer(hidden_states=hidden_states)  # ckpt: ignore[CKPT003] trained without
            hidden_states = self.other(hidden_states=hidden_states)
        return hidden_states
