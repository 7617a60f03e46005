# CKPT001 unsafe | class FooLayer | a checkpoint call is commented out in FooModel.forward
# prelude: plain

class FooModel:
    def forward(self, hidden_states, attention_mask=None):
        for layer in self.layers:
            # these must not be computed twice
            # if self.gradient_checkpointing and self.training:
            #     hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, attention_mask)
            # else:
            hidden_states = layer(hidden_states, attention_mask)
        return hidden_states
