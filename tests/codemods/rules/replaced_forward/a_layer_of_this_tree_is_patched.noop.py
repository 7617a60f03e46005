# CKPT013 unsafe | FooLayer.forward
# prelude: gcl

def fast(self, hidden_states, attention_mask=None):
    return hidden_states

FooLayer.forward = fast
