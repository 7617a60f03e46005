# CKPT010 unsafe | outputs = ((hidden_states
# prelude: gcl

class FooLayer:
    def forward(self, hidden_states, attention_mask=None):
        layout = hidden_states
        outputs = ((hidden_states, layout), attention_mask)
        return outputs
