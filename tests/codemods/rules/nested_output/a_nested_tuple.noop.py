# CKPT010 unsafe | return (hidden_states, layout)
# prelude: gcl

class FooLayer:
    def forward(self, hidden_states, attention_mask=None):
        layout = hidden_states
        return (hidden_states, layout), attention_mask
