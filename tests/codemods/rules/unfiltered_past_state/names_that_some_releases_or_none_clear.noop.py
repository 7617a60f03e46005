# CKPT008 unsafe | cache_params=past_key_values
# CKPT008 unsafe | past_key_value=past_key_values
# prelude: gcl


class FooLayer:
    def forward(self, hidden_states, past_key_values=None, cache=None, cache_params=None, past_key_value=None):
        return hidden_states


class FooModel:
    def forward(self, hidden_states, past_key_values=None, cache=None):
        for layer in self.layers:
            hidden_states = layer(hidden_states, past_key_values=past_key_values)
            hidden_states = layer(hidden_states, cache=cache)
            hidden_states = layer(hidden_states, cache_params=None)
            hidden_states = layer(hidden_states, cache_params=past_key_values)
            hidden_states = layer(hidden_states, past_key_value=past_key_values)
        return hidden_states
