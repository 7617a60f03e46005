# trains: 2 | 2
# CKPT002 info | if self.gradient_checkpointing and self.training | FooModel sets FooLayer to eval mode
# prelude: trained

class FooModel:
    def train(self, mode=True):
        super().train(mode)
        self.layers.eval()
        return self

    def forward(self, hidden_states):
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states)
            else:
                hidden_states = layer(hidden_states)
        return hidden_states
