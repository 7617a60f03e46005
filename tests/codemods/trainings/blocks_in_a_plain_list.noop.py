# trains: 2 | 2
# CKPT002 info | if self.gradient_checkpointing | is a plain list
# prelude: trained

class FooModel:
    def __init__(self, config):
        super().__init__(config)
        self.layers = [FooLayer() for _ in range(3)]
        self.gradient_checkpointing = False

    def forward(self, hidden_states):
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states)
            else:
                hidden_states = layer(hidden_states)
        return hidden_states
