# CKPT002 unsafe | if use_checkpoint | gradient_checkpointing_enable() does not set what the test asks for
# prelude: gcl

class FooModel:
    def forward(self, hidden_states, attention_mask=None):
        use_checkpoint = self.gradient_checkpointing and self.training
        if hidden_states.shape[1] < 1024:
            use_checkpoint = False
        for layer in self.layers:
            if use_checkpoint:
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, attention_mask)
            else:
                hidden_states = layer(hidden_states, attention_mask)
        return hidden_states
