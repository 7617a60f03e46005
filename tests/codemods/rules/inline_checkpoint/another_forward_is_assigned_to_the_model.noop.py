# CKPT002 unknown | if self.gradient_checkpointing and self.training | another forward is assigned to FooModel
# prelude: plain

class FooModel:
    def forward(self, hidden_states, attention_mask=None):
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states)
            else:
                hidden_states = layer(hidden_states)
        return hidden_states


FooModel.forward = new_forward
