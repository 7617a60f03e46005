# CKPT004 unsafe | layer(hidden_states, attention_mask, past_key_values, scale) | `scale` would be by keyword, too
# prelude: gcl

class FooLayer:
    def forward(self, hidden_states, attention_mask=None, past_key_values=None, scale=None, query_length=None, turns=0):
        return self.self_attn(hidden_states)

class FooModel:
    def forward(self, hidden_states, attention_mask=None, past_key_values=None):
        scale = self.scale(hidden_states)
        for layer in self.layers:
            hidden_states = layer(hidden_states, attention_mask, past_key_values, scale)
        return hidden_states
