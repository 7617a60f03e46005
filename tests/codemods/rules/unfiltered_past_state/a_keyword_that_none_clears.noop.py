# CKPT008 unsafe | cache_params=past_key_values
# prelude: gcl

class FooLayer:
    def forward(self, hidden_states, cache_params=None):
        return hidden_states

class FooModel:
    def forward(self, hidden_states, attention_mask=None, past_key_values=None, encoder_hidden_states=None, **kwargs):
        for layer in self.layers:
            hidden_states = layer(hidden_states, cache_params=past_key_values)
        return hidden_states
