# prelude: ddp

class Wrapper(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)

def train(model, x):
    loss = Wrapper(model)(x).sum()
    loss.backward()
    ddp = DDP(model)
