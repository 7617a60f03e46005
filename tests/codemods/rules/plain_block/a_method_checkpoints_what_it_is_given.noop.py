# prelude: plain

class FooModel:
    def _run(self, block, hidden_states):
        from torch.utils.checkpoint import checkpoint

        return checkpoint(block, hidden_states) if self.recompute else block(hidden_states)

    def forward(self, hidden_states, attention_mask=None):
        for layer in self.layers:
            hidden_states = self._run(layer, hidden_states)
        return hidden_states
