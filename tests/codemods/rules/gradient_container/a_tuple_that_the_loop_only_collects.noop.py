# prelude: gcl

class FooModel:
    def forward(self, hidden_states, attention_mask=None):
        everything, attentions = (), ()
        for layer in self.layers:
            everything += (hidden_states,)
            hidden_states, attention = layer(hidden_states, attention_mask)
            attentions = attentions + (attention,)
        return hidden_states, everything, attentions
