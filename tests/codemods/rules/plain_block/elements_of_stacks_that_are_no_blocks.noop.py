# CKPT001 info | class FooConvLayer(nn.Module)
# CKPT001 info | class FooExpert(nn.Module)
# CKPT001 info | class FooLMHead(nn.Module)
# CKPT001 info | class FooProjection(nn.Module)
# CKPT001 info | class FooResidualUnit(nn.Module)
# prelude: gcl


class FooConvLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 2, 3)


class FooExpert(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 2, 3)


class FooLMHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 2, 3)


class FooProjection(nn.Module):
    pass


class FooResidualUnit(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 2, 3)


class FooLayer: ...


class FooModel:
    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer(config)])
        self.convolutions = nn.ModuleList([FooConvLayer() for _ in range(2)])
        self.experts = nn.ModuleList([FooExpert() for _ in range(2)])
        self.heads = nn.ModuleList([FooLMHead() for _ in range(2)])
        self.projections = nn.ModuleList([FooProjection() for _ in range(2)])
        self.vocoder = nn.ModuleList([FooResidualUnit() for _ in range(2)])
        self.attentions = nn.ModuleList([FooAttention() for _ in range(2)])
