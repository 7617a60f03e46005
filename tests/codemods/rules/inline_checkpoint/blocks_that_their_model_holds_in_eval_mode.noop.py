# CKPT002 unsafe | if self.gradient_checkpointing and self.training | this file sets modules to eval mode
# prelude: plain

class FooModel:
    def freeze(self):
        self.layers.apply(lambda module: module.eval())

    def forward(self, hidden_states, attention_mask=None):
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, attention_mask)
            else:
                hidden_states = layer(hidden_states, attention_mask)
        return hidden_states
