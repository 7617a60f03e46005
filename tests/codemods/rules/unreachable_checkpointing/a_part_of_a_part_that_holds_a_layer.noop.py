# prelude: gcl

class FooModel: ...


class FooPairModel(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        whole = FooWholeModel(config)
        self.pooler = FooAttention()
        self.model = whole.model


class FooWholeModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.model = FooModel(config)
