# trains: 2 | 2
# CKPT002 info | if torch.is_grad_enabled() and self.gradient_checkpointing
# prelude: trained

class FooModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.encoder = nn.Linear(4, 4)
        self.layers = nn.ModuleList([FooLayer() for _ in range(3)])
        self.gradient_checkpointing = False

    def forward(self, hidden_states):
        encoded = self.encoder(hidden_states)
        for layer in self.layers:
            if torch.is_grad_enabled() and self.gradient_checkpointing:
                hidden_states = checkpoint(layer, hidden_states, encoded, use_reentrant=False)
            else:
                options = dict(encoder_hidden_states=encoded)
                hidden_states = layer(hidden_states, **options)
        return hidden_states
