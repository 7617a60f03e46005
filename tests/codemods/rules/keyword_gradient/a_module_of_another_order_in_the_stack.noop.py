# CKPT003 unsafe | layer(hidden_states=hidden_states | `hidden_states` by keyword
# CKPT003 unknown | layer(hidden_states=hidden_states | it also runs FooMixer, with other
# prelude: gcl

class FooMixer(nn.Module):
    def forward(self, attention_mask=None, hidden_states=None):
        return hidden_states


class FooModel:
    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooMixer(), *[FooLayer(config) for _ in range(config.num_hidden_layers)]])

    def forward(self, hidden_states, attention_mask=None):
        for layer in self.layers:
            hidden_states = layer(hidden_states=hidden_states, attention_mask=attention_mask)
        return hidden_states
