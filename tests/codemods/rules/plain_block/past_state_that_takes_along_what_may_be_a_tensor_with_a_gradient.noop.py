# CKPT001 unsafe | class FooLayer(nn.Module) | FooModel passes `past_key_values` to FooLayer by position, which is not repaired
# CKPT004 unsafe | layer(hidden_states, attention_mask, past_key_values, scale) | `scale` would be by keyword, too
# prelude: plain

class FooLayer:
    def forward(self, hidden_states, attention_mask=None, past_key_values=None, scale=None):
        return self.self_attn(hidden_states)

class FooModel:
    def forward(self, hidden_states, attention_mask=None, past_key_values=None):
        scale = self.scale(hidden_states)
        for layer in self.layers:
            hidden_states = layer(hidden_states, attention_mask, past_key_values, scale)
        return hidden_states
