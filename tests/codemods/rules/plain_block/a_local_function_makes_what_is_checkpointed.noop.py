# CKPT002 info | hidden_states = self._gradient_checkpointing_func | run(index) is checkpointed by hand
# prelude: plain

class FooModel:
    def forward(self, hidden_states, attention_mask=None):
        for index in range(len(self.layers)):
            def run(number):
                def run_layer(hidden_states):
                    return self.layers[number](hidden_states)
                return run_layer
            hidden_states = self._gradient_checkpointing_func(run(index), hidden_states)
        return hidden_states
