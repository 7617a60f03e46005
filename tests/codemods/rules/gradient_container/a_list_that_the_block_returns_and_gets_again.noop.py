# CKPT007 unsafe | layer( | `sources`
# prelude: gcl

class FooLayer:
    def forward(self, hidden_states, sources: list[torch.Tensor] | None = None):
        return hidden_states, sources

class FooModel:
    def forward(self, hidden_states, attention_mask=None):
        sources = None
        for layer in self.layers:
            hidden_states, sources = layer(hidden_states, sources=sources)
        return hidden_states
