# trains: 1 | 1
# CKPT001 unsafe | class FooLayer | by `**options`
# CKPT003 unsafe | layer(hidden_states, **options)
# prelude: trained

class FooModel:
    def forward(self, hidden_states):
        options = {"encoder_hidden_states": self.encoder(hidden_states)}
        for layer in self.layers:
            hidden_states = layer(hidden_states, **options)
        return hidden_states
