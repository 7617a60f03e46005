# trains: 1/2 | 1/2
# CKPT004 unsafe | hidden_states = layer( | it also runs FooMixer, with other parameters
# prelude: trained

class FooLayer(GradientCheckpointingLayer):
    def forward(self, hidden_states, encoder_hidden_states=None, past_key_values=None):
        return hidden_states + self.self_attn(hidden_states)


class FooMixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, tokens, other=None, memory=None):
        return tokens + self.proj(tokens)


class FooModel:
    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooMixer() if index else FooLayer() for index in range(2)])

    def forward(self, hidden_states):
        for layer in self.layers:
            hidden_states = layer(hidden_states, None, [])
        return hidden_states
