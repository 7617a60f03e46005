# CKPT002 info | if | torch's own
# prelude: gcl

class FooModel:
    def __init__(self, config):
        super().__init__(config)
        self.convs = nn.ModuleList([nn.Conv1d(2, 2, 3)])
        self.layers = nn.ModuleList([FooLayer(config)])

    def forward(self, hidden_states, attention_mask=None):
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(self.convs[0], hidden_states, attention_mask)
            else:
                hidden_states = self.convs[0](hidden_states)
        return hidden_states
