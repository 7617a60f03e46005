# trains: 1 | 1
# CKPT001 unsafe | class FooLayer | what another block put there
# prelude: trained

class FooLayer:
    def forward(self, hidden_states, encoder_hidden_states=None, past_key_values=None):
        mixed = self.self_attn(hidden_states)
        if past_key_values is not None and self.source >= 0:
            mixed = mixed + past_key_values[self.source]
        if past_key_values is not None:
            past_key_values.append(mixed)
        return hidden_states + mixed


class FooModel:
    def forward(self, hidden_states):
        past_key_values = []
        for place, layer in enumerate(self.layers):
            layer.source = place - 1
            hidden_states = layer(hidden_states, past_key_values=past_key_values)
        return hidden_states
