# CKPT003 unsafe | encoder_hidden_states=encoder
# prelude: gcl

SCALE = 2

class FooLayer:
    def forward(self, hidden_states, scale=SCALE, encoder_hidden_states=None):
        return hidden_states

class FooModel:
    def forward(self, hidden_states, attention_mask=None, past_key_values=None, encoder_hidden_states=None, **kwargs):
        for layer in self.layers:
            hidden_states = layer(hidden_states, encoder_hidden_states=encoder_hidden_states)
        return hidden_states
