# CKPT004 unsafe | hidden_states = layer( | not repaired: it also runs FooMixer, with other
# prelude: cached

class FooMixer(nn.Module):
    def forward(self, tokens, mask=None, cache=None):
        return tokens


class FooModel:
    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer(config) if index else FooMixer() for index in range(config.num_layers)])

    def forward(self, hidden_states, attention_mask=None, past_key_values=None):
        for layer in self.layers:
            hidden_states = layer(hidden_states, attention_mask, past_key_values)
        return hidden_states
