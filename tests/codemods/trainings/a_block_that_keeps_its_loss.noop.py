# trains: 1 | 1
# CKPT001 unsafe | class FooLayer | keeps a tensor in `self.loss`
# prelude: trained

class FooLayer:
    def forward(self, hidden_states, encoder_hidden_states=None):
        hidden_states = hidden_states + self.self_attn(hidden_states)
        self.loss = hidden_states.softmax(-1).mean()
        return hidden_states


class FooModel:
    def forward(self, hidden_states):
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return hidden_states + sum(layer.loss for layer in self.layers)
