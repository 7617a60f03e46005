# prelude: gcl

class FooLayer:
    def forward(self, hidden_states, attention_mask=None):
        attention_probs = attn_weights = attention_mask
        return hidden_states, (attention_probs, attn_weights)
