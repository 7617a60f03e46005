# CKPT002 unsafe | if self.gradient | the branch goes without `conv_cache`
# prelude: gcl

class FooLayer:
    def forward(self, hidden_states, attention_mask=None, conv_cache=None):
        return self.self_attn(hidden_states)

class FooModel:
    def forward(self, hidden_states, attention_mask=None, conv_cache=None):
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, attention_mask)
            else:
                hidden_states = layer(hidden_states, attention_mask, conv_cache=conv_cache)
        return hidden_states
