# CKPT002 info | return self._gradient_checkpointing_func | run is checkpointed by hand
# prelude: plain

class FooLayer:
    def forward(self, hidden_states, attention_mask=None):
        def run(hidden_states):
            return self.self_attn(hidden_states)
        return self._gradient_checkpointing_func(run, hidden_states)
