# prelude: cached

class FooModel:
    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer(config)])
        self.other = nn.Identity()

    def forward(self, hidden_states, attention_mask=None, past_key_values=None, encoder_hidden_states=None, **kwargs):
        for layer in self.layers:
            hidden_states = self.other(hidden_states=hidden_states)
        return hidden_states
