# CKPT002 unsafe | self._gradient | it is a conditional expression
# prelude: gcl

class FooModel:
    def forward(self, hidden_states, attention_mask=None):
        for layer in self.layers:
            hidden_states = (
                self._gradient_checkpointing_func(layer.__call__, hidden_states, attention_mask)
                if self.gradient_checkpointing and self.training
                else layer(hidden_states, attention_mask)
            )
        return hidden_states
