# CKPT008 info | cache_params=cache_params | makes none in training
# prelude: gcl

class FooLayer:
    def forward(self, hidden_states, cache_params=None):
        return hidden_states

class FooModel:
    def forward(self, hidden_states, cache_params=None, use_cache=None):
        if self.gradient_checkpointing and self.training and use_cache:
            use_cache = False
        if use_cache and cache_params is None:
            cache_params = Cache()
        for layer in self.layers:
            hidden_states = layer(hidden_states, cache_params=cache_params)
        return hidden_states
