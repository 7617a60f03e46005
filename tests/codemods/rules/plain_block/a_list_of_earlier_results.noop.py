# CKPT001 unsafe | class FooLayer | FooModel gives FooLayer tensors with gradient inside a container
# CKPT007 unsafe | layer(hidden_states, list(history))
# prelude: plain

class FooLayer:
    def forward(self, hidden_states, history=None):
        return self.self_attn(hidden_states) + sum(history)

class FooModel:
    def forward(self, hidden_states, attention_mask=None):
        history = []
        for layer in self.layers:
            hidden_states = layer(hidden_states, list(history))
            history.append(hidden_states)
        return hidden_states
