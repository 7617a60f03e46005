# prelude: gcl

class FooPart(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn = FooAttention()

    def forward(self, hidden_states, attention_mask=None):
        return hidden_states

class FooLayer:
    def __init__(self, config):
        super().__init__()
        self.parts = nn.ModuleList([FooPart(config)])
