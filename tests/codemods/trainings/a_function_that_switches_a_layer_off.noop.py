# trains: 2 | 2
# CKPT002 info | if self.gradient_checkpointing
# prelude: trained

class FooLayer(GradientCheckpointingLayer): ...


class FooModel:
    def forward(self, hidden_states):
        def run(hidden_states, layer):
            saved = layer.gradient_checkpointing
            layer.gradient_checkpointing = False
            try:
                return layer(hidden_states)
            finally:
                layer.gradient_checkpointing = saved

        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = checkpoint(run, hidden_states, layer, use_reentrant=False)
            else:
                hidden_states = run(hidden_states, layer)
        return hidden_states
