# CKPT001 unsafe | class FooLayer(nn.Module) | FooModel passes `layer_past` to FooLayer by position, which only CKPT005
# CKPT004 unsafe | past_key_values | CKPT005 reorders it
# CKPT005 unsafe | def forward
# prelude: plain

class FooLayer:
    def forward(self, hidden_states, layer_past=None, encoder_hidden_states=None):
        return hidden_states

class FooModel:
    def forward(self, hidden_states, attention_mask=None, past_key_values=None, encoder_hidden_states=None):
        for layer in self.layers:
            hidden_states = layer(hidden_states, past_key_values, encoder_hidden_states)
        return hidden_states
