# trains: 2 | 2
# CKPT002 info | if self.gradient_checkpointing
# prelude: trained

class FooModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layers = nn.ModuleList([FooLayer() for _ in range(3)])
        self.gradient_checkpointing = False

    def forward(self, hidden_states):
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = checkpoint(layer, hidden_states, use_reentrant=False)
            else:
                hidden_states = layer(hidden_states)
        return hidden_states
