# trains: 2 | 3
# CKPT002 unsafe | elif self.gradient_checkpointing | FooLayer checkpoints by itself, too
# prelude: trained

class FooLayer(GradientCheckpointingLayer): ...


class FooModel:
    def forward(self, hidden_states, mask=None):
        for layer in self.layers:
            if mask is not None:
                hidden_states = layer(hidden_states * mask)
            elif self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states)
            else:
                hidden_states = layer(hidden_states)
        return hidden_states
