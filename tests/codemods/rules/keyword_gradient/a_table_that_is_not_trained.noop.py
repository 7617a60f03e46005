# prelude: gcl

class FooLayer:
    def forward(self, hidden_states, alibi=None, cos=None):
        return hidden_states + alibi * cos

class FooModel:
    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer(config) for _ in range(config.num_hidden_layers)])
        self.slope = nn.Parameter(torch.ones(4), requires_grad=False)
        self.rotary = nn.Embedding(4, 4)

    def forward(self, hidden_states):
        for layer in self.layers:
            hidden_states = layer(hidden_states, alibi=self.slope * torch.arange(4), cos=self.rotary(hidden_states))
        return hidden_states
