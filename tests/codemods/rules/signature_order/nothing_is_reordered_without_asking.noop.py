# CKPT005 unsafe | def forward | `encoder_hidden_states` behind past state
# CKPT004 unsafe | past_key_values
# prelude: gcl

class FooLayer:
    def forward(self, hidden_states, layer_past=None, attention_mask=None, encoder_hidden_states=None):
        return hidden_states

class FooModel:
    def forward(self, hidden_states, attention_mask=None, past_key_values=None, encoder_hidden_states=None, **kwargs):
        for layer in self.layers:
            hidden_states = layer(hidden_states, past_key_values, attention_mask, encoder_hidden_states)
        return hidden_states
