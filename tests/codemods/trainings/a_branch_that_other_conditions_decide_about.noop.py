# trains: 1/2 | 1/2
# CKPT002 info | if self.gradient_checkpointing | the test also asks for index > 0
# prelude: trained

class FooModel:
    def forward(self, hidden_states):
        for index, layer in enumerate(self.layers):
            if self.gradient_checkpointing and self.training and index > 0:
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states)
            else:
                hidden_states = layer(hidden_states)
        return hidden_states
