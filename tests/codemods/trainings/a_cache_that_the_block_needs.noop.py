# trains: 1 | 1
# CKPT001 unsafe | class FooLayer | reads `past_key_values` without asking
# prelude: trained

class FooLayer:
    def forward(self, hidden_states, encoder_hidden_states=None, past_key_values=None):
        past_key_values.append(hidden_states.detach())
        return hidden_states + self.self_attn(hidden_states) * len(past_key_values)


class FooModel:
    def forward(self, hidden_states):
        past_key_values = []
        for layer in self.layers:
            hidden_states = layer(hidden_states, past_key_values=past_key_values)
        return hidden_states
