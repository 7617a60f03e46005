# prelude: gcl

class FooLayer:
    def forward(self, hidden_states, position_embeddings=None):
        return hidden_states

class FooModel:
    def forward(self, hidden_states, attention_mask=None, past_key_values=None, encoder_hidden_states=None, **kwargs):
        for layer in self.layers:
            hidden_states = layer(hidden_states, position_embeddings=attention_mask)
        return hidden_states
