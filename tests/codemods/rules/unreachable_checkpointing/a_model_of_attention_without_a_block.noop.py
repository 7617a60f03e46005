# CKPT009 unsafe | class FooModel
# prelude: plain

class FooModel:
    def __init__(self, config):
        super().__init__(config)
        self.layer = FooLayer(config)

    def forward(self, hidden_states, attention_mask=None):
        hidden_states = self.layer(hidden_states)
        return hidden_states
