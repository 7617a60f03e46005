# CKPT005 unsafe | def forward(self, hidden_states, past_key_values | not repaired: one of its calls also runs FooMixer
# CKPT004 unsafe | hidden_states = layer(
# prelude: gcl

class FooLayer:
    def forward(self, hidden_states, past_key_values=None, encoder_hidden_states=None):
        return hidden_states


class FooMixer(nn.Module):
    def forward(self, hidden_states, past_key_values=None, encoder_hidden_states=None):
        return hidden_states


class FooModel:
    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer(config) if index else FooMixer() for index in range(config.num_layers)])

    def forward(self, hidden_states, attention_mask=None, past_key_values=None, encoder_hidden_states=None):
        for layer in self.layers:
            hidden_states = layer(hidden_states, past_key_values, encoder_hidden_states)
        return hidden_states
