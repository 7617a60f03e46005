# CKPT002 info | hidden_states = self._gradient_checkpointing_func | self.encoder.run_range(0, 2) is checkpointed
# CKPT002 info | hidden_states = self._gradient_checkpointing_func | segment is checkpointed
# prelude: plain


class FooEncoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layers = nn.ModuleList([FooLayer(config) for _ in range(config.num_hidden_layers)])

    def run_range(self, start, end):
        def run(hidden_states):
            for layer in self.layers[start:end]:
                hidden_states = layer(hidden_states)
            return hidden_states

        return run


class FooModel:
    def __init__(self, config):
        super().__init__(config)
        self.encoder = FooEncoder(config)

    def forward(self, hidden_states, attention_mask=None):
        hidden_states = self._gradient_checkpointing_func(self.encoder.run_range(0, 2), hidden_states)
        segment = self.encoder.run_range(0, 2)
        hidden_states = self._gradient_checkpointing_func(segment, hidden_states)
        return hidden_states
