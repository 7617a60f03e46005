# CKPT013 unsafe | FooLayer.forward = new_forward
# CKPT003 unknown | layer(hidden_states=hidden_states) | another forward is assigned to FooLayer
# prelude: gcl

class FooModel:
    def forward(self, hidden_states, attention_mask=None):
        for layer in self.layers:
            hidden_states = layer(hidden_states=hidden_states)
        return hidden_states


def new_forward(self, *, hidden_states):
    return hidden_states


FooLayer.forward = new_forward
