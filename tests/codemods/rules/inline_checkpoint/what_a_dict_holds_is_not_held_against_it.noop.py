# prelude: gcl
# CKPT002 info | if self.gradient_checkpointing

class FooUser(FooPreTrainedModel):
    def __init__(self, config):
        self.layers = nn.ModuleList([FooLayer() for _ in range(2)])
        self.gradient_checkpointing = True

    def forward(self, hidden_states, attention_mask=None):
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = checkpoint(layer, hidden_states, attention_mask)
            else:
                options = dict(attention_mask=attention_mask)
                hidden_states = layer(hidden_states, **options)
        return hidden_states
