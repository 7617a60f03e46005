# CKPT003 unsafe | layer(hidden_states=hidden_states
# prelude: gcl

class FooLayer:
    def forward(self, hidden_states, attention_mask, encoder_hidden_states):
        return hidden_states

class FooModel:
    def forward(self, hidden_states, attention_mask=None, past_key_values=None, encoder_hidden_states=None, **kwargs):
        for layer in self.layers:
            hidden_states = layer(hidden_states=hidden_states, encoder_hidden_states=encoder_hidden_states)
        return hidden_states
