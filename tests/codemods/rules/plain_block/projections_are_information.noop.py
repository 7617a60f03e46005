# CKPT001 info | class FooProjection(nn.Module)
# prelude: gcl

class FooProjection(nn.Module):
    pass

class FooLayer: ...

class FooModel:
    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer(config)])
        self.projections = nn.ModuleList([FooProjection() for _ in range(2)])
