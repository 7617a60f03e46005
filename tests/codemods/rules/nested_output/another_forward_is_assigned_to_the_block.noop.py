# CKPT013 unsafe | FooLayer.forward = new_forward
# prelude: gcl

class FooLayer:
    def forward(self, hidden_states, attention_mask=None):
        return (hidden_states, (hidden_states,))


FooLayer.forward = new_forward
