# CKPT001 unsafe | class FooLayer | FooModel.forward reads more outputs of FooLayer where `use_cache` is True
# prelude: plain

class FooLayer:
    def forward(self, hidden_states, past_key_values=None, use_cache=False):
        return (hidden_states, past_key_values) if use_cache else (hidden_states,)

class FooModel:
    def forward(self, hidden_states, past_key_values=None, use_cache=None):
        for layer in self.layers:
            outputs = layer(hidden_states, past_key_values=past_key_values, use_cache=use_cache)
            hidden_states = outputs[0]
            if use_cache:
                past_key_values = outputs[1]
        return hidden_states, past_key_values
