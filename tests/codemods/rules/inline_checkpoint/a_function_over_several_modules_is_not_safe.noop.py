# CKPT002 unsafe | if self.gradient_checkpointing and self.training | run checkpoints several modules as one
# CKPT002 unsafe | if self.gradient_checkpointing:  # a loop | segment checkpoints several modules as one
# CKPT002 unsafe | if self.gradient_checkpointing:  # made | both(self.layers[0], self.norm) checkpoints several
# prelude: gcl

class FooModel:
    def forward(self, hidden_states, attention_mask=None):
        def both(module, norm):
            def custom_forward(*inputs):
                return norm(module(*inputs))

            return custom_forward

        def segment(states):
            for layer in self.layers[1:]:
                states = layer(states, attention_mask)
            return states

        for layer in self.layers:
            def run(states, layer=layer):
                return self.norm(layer(states, attention_mask))

            if self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(run, hidden_states)
            else:
                hidden_states = run(hidden_states)
        if self.gradient_checkpointing:  # a loop
            hidden_states = self._gradient_checkpointing_func(segment, hidden_states)
        else:
            hidden_states = segment(hidden_states)
        if self.gradient_checkpointing:  # made
            hidden_states = self._gradient_checkpointing_func(both(self.layers[0], self.norm), hidden_states)
        else:
            hidden_states = self.norm(self.layers[0](hidden_states))
        return hidden_states
