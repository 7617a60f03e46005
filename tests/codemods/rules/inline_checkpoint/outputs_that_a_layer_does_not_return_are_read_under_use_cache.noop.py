# CKPT002 unsafe | if self.gradient_checkpointing | FooModel.forward reads more outputs of FooLayer where `use_cache`
# prelude: plain

class FooLayer:
    def forward(self, hidden_states, use_cache=False):
        return (hidden_states, None) if use_cache else (hidden_states,)

class FooModel:
    def forward(self, hidden_states, use_cache=None):
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                outputs = self._gradient_checkpointing_func(layer.__call__, hidden_states, use_cache)
            else:
                outputs = layer(hidden_states, use_cache=use_cache)
            hidden_states = outputs[0]
            present = outputs[1] if use_cache else None
        return hidden_states, present
