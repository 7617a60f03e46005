# CKPT001 info | class FooConvLayer(nn.Module)
# prelude: gcl

class FooConvLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 2, 3)

class FooLayer: ...

class FooModel:
    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer(config)])
        self.others = nn.ModuleList([FooConvLayer() for _ in range(2)])
