# prelude: gcl

class FooModel:
    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer(config)])
        self.attentions = nn.ModuleList([FooAttention() for _ in range(2)])
