# CKPT002 info | hidden_states = self._gradient_checkpointing_func(run | no else branch
# CKPT012 unsafe | hidden_states = self._gradient_checkpointing_func(run | looks up `layer`
# prelude: gcl

class FooModel:
    def forward(self, hidden_states, attention_mask=None):
        for layer in self.layers:
            def run(states):
                return layer(states, attention_mask)

            hidden_states = self._gradient_checkpointing_func(run, hidden_states)
        return hidden_states
