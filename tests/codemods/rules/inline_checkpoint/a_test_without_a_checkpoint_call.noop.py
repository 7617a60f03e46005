# prelude: gcl

class FooModel:
    def forward(self, hidden_states, attention_mask=None, past_key_values=None, use_cache=None):
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                attention_mask = None
            hidden_states = layer(hidden_states, attention_mask)
        return hidden_states
