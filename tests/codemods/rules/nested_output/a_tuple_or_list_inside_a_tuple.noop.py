# CKPT010 unsafe | return (hidden_states, layout)
# CKPT010 unsafe | return ([hidden_states
# CKPT010 unsafe | outputs = ((hidden_states
# CKPT010 unsafe | added = ((hidden_states
# prelude: gcl


class FooLayer:
    def forward(self, hidden_states, attention_mask=None):
        layout = attention_probs = attn_weights = hidden_states
        if self.one:
            return (hidden_states, layout), attention_mask
        if self.two:
            return ([hidden_states, layout], attention_mask)
        if self.three:
            outputs = ((hidden_states, layout), attention_mask)
            return outputs
        if self.four:
            added = ((hidden_states, layout),) + (attention_mask,)
            return added
        if self.weights:
            return hidden_states, (attention_probs, attn_weights)
        return hidden_states, attention_mask
