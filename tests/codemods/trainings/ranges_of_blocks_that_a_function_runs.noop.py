# trains: 2 | 2
# CKPT001 unsafe | class FooLayer | forward_in_ranges checkpoints, and reads `layers` of another object
# prelude: trained

def forward_in_ranges(model, hidden_states):
    for start in range(0, 3, 2):
        hidden_states = checkpoint(nn.Sequential(*model.layers[start : start + 2]), hidden_states, use_reentrant=False)
    return hidden_states


class FooModel:
    def forward(self, hidden_states):
        if self.gradient_checkpointing:
            return forward_in_ranges(self, hidden_states)
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return hidden_states
