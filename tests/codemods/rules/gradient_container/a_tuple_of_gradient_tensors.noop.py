# CKPT007 unsafe | layer( | inside a container
# prelude: gcl

class FooLayer:
    def forward(self, hidden_states, features=None, position_embeddings=None):
        return hidden_states

class FooModel:
    def forward(self, hidden_states, attention_mask=None, past_key_values=None, encoder_hidden_states=None, **kwargs):
        for layer in self.layers:
            hidden_states = layer(hidden_states, (hidden_states, attention_mask))
        return hidden_states
