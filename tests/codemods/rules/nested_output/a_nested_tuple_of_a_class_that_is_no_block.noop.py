# prelude: gcl

class FooPooler(nn.Module):
    def forward(self, hidden_states, layout):
        return (hidden_states, layout), None

class FooModel:
    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer(config)])
        self.pooler = FooPooler()
