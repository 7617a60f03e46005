# trains: 2 | 2
# CKPT002 info | if self.gradient_checkpointing and self.training
# prelude: trained

class FooModel:
    def run_range(self, start, end):
        def run(hidden_states):
            for index in range(start, end):
                hidden_states = self.layers[index](hidden_states)
            return hidden_states

        return run

    def forward(self, hidden_states):
        for start in range(3):
            if self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(self.run_range(start, start + 1), hidden_states)
            else:
                hidden_states = self.run_range(start, start + 1)(hidden_states)
        return hidden_states
