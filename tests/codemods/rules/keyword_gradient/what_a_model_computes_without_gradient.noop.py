# prelude: gcl

class FooRotary(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.register_buffer("freqs", config.freqs)

class FooLayer:
    def forward(self, hidden_states, rotary=None, table=None, routes=None, block_mask=None, width=None, teacher=None):
        return hidden_states

class FooModel:
    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer(config) for _ in range(config.num_hidden_layers)])
        self.rotary_emb = FooRotary(config)
        self.gate = nn.Linear(4, 4)
        self.pooler = nn.AvgPool1d(2)

    def forward(self, hidden_states, attention_mask=None):
        with torch.no_grad():
            teacher = self.gate(hidden_states)
        for layer in self.layers:
            hidden_states = layer(
                hidden_states,
                rotary=self.rotary_emb(hidden_states),
                table=self.pooler(hidden_states),
                routes=self.gate(hidden_states).argmax(-1),
                block_mask=self.gate(hidden_states) > 0,
                width=self.gate(hidden_states).shape[-1],
                teacher=teacher,
            )
        return hidden_states
