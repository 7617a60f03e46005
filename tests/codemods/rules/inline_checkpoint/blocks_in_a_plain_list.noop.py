# CKPT002 unsafe | if self.gradient_checkpointing and self.training | FooModel.layers is a plain list
# prelude: plain

class FooModel:
    def __init__(self, config):
        super().__init__(config)
        layers = [FooLayer(config) for _ in range(config.num_hidden_layers)]
        self.layers = tuple(layers)

    def forward(self, hidden_states, attention_mask=None):
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, attention_mask)
            else:
                hidden_states = layer(hidden_states, attention_mask)
        return hidden_states
