# prelude: gcl

class FooLayer:
    def forward(self, hidden_states, attention_mask=None, encoder_hidden_states=None, output_attentions=False):
        return hidden_states

class FooModel:
    def forward(self, hidden_states, attention_mask=None, past_key_values=None, encoder_hidden_states=None, **kwargs):
        for layer in self.layers:
            hidden_states = layer(hidden_states, encoder_hidden_states=None)
        return hidden_states
