# CKPT002 unsafe | if self.gradient_checkpointing | FooUser passes `layer_past` to FooLayer by position, which only CKPT005
# CKPT004 unsafe | past_key_values | CKPT005 reorders it
# CKPT005 unsafe | def forward | a checkpoint call in FooModel
# prelude: plain

class FooLayer:
    def forward(self, hidden_states, layer_past=None, encoder_hidden_states=None):
        return hidden_states

class FooUser(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.block = FooLayer(config)

    def forward(self, hidden_states, past_key_values, encoder_hidden_states):
        return self.block(hidden_states, past_key_values, encoder_hidden_states)

class FooModel:
    def forward(self, hidden_states, attention_mask=None, past_key_values=None, encoder_hidden_states=None):
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, None)
            else:
                hidden_states = layer(hidden_states)
        return hidden_states
