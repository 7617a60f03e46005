# CKPT002 unsafe | if self.gradient | the branch goes without `mem`: if that is past state, a layer would write it twice
# prelude: gcl

class FooLayer:
    def forward(self, hidden_states, attention_mask=None, mem=None):
        return self.self_attn(hidden_states)

class FooModel:
    def forward(self, hidden_states, attention_mask=None, mem=None):
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, attention_mask, None)
            else:
                hidden_states = layer(hidden_states, attention_mask, mem=mem)
        return hidden_states
