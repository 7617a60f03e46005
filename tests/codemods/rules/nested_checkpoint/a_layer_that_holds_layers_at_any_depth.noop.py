# CKPT006 unsafe | class FooLayer | FooInner
# CKPT006 unsafe | class FooListing | FooInner
# CKPT006 unsafe | class FooDeep | FooInner
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


class FooMiddle(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.inner = FooInner(config)


class FooListing(GradientCheckpointingLayer):
    def __init__(self, config):
        super().__init__()
        self.blocks = nn.ModuleList([FooInner(config) for _ in range(2)])


class FooDeep(GradientCheckpointingLayer):
    def __init__(self, config):
        super().__init__()
        self.middle = FooMiddle(config)


class FooPlain(GradientCheckpointingLayer):
    def __init__(self, config):
        super().__init__()
        self.blocks = nn.ModuleList([FooAttention() for _ in range(2)])


class FooModel: ...
