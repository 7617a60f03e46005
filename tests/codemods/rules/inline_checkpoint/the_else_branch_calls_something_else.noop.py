# CKPT002 unsafe | if | does not call layer
# prelude: gcl

class FooModel:
    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer(config) for _ in range(4)])
        self.other = nn.Identity()

    def forward(self, hidden_states, attention_mask=None, past_key_values=None, use_cache=None):
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, attention_mask)
            else:
                hidden_states = self.other(hidden_states)
        return hidden_states
