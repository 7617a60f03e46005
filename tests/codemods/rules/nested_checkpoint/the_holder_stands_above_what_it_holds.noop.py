# CKPT006 unsafe | class FooLayer | FooInner
# prelude: gcl

class FooLayer:
    def __init__(self, config):
        super().__init__()
        self.block = FooInner(config)

class FooInner(GradientCheckpointingLayer):
    def __init__(self, config):
        super().__init__()
        self.self_attn = FooAttention()

    def forward(self, hidden_states, attention_mask=None):
        return hidden_states

class FooModel: ...
