# CKPT001 unsafe | class FooLayer | FooLayer returns tensors inside a container
# prelude: plain

class FooLayer:
    def forward(self, hidden_states, attention_mask=None):
        outputs = {"states": self.self_attn(hidden_states)}
        return outputs

class FooModel:
    def forward(self, hidden_states, attention_mask=None):
        for layer in self.layers:
            hidden_states = layer(hidden_states, attention_mask)["states"]
        return hidden_states
