# CKPT001 unknown | class FooLayer | another forward is assigned to FooLayer
# prelude: plain

def new_forward(self, hidden_states):
    return hidden_states


FooLayer.forward = new_forward
