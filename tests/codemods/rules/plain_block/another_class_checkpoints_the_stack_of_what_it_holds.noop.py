# CKPT001 unsafe | class FooLayer | FooPipeline checkpoints, and reads `layers` of another object
# prelude: plain

class FooPipeline(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def run_range(self, start, end):
        def run(hidden_states):
            for layer in self.model.layers[start:end]:
                hidden_states = layer(hidden_states)
            return hidden_states

        return run

    def forward(self, hidden_states):
        return self._gradient_checkpointing_func(self.run_range(0, 2), hidden_states)
