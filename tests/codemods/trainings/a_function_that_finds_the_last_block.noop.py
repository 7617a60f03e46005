# trains: wrong | wrong
# CKPT002 info | if self.gradient_checkpointing and self.training
# CKPT012 unsafe | hidden_states = checkpoint(run | looks up `layer`
# prelude: trained

class FooModel:
    def forward(self, hidden_states):
        encoded = self.encoder(hidden_states)
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:

                def run(hidden_states, encoded):
                    return layer(hidden_states, encoded)

                hidden_states = checkpoint(run, hidden_states, encoded, use_reentrant=False)
            else:
                hidden_states = layer(hidden_states, encoded)
        return hidden_states
