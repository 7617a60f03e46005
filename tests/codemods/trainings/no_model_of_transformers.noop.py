# trains: 1 | 1
# prelude: trained

class Saved:
    def save_pretrained(self, path):
        pass


class FooModel(Saved, nn.Module):
    def __init__(self, config):
        super().__init__()
        self.encoder = nn.Linear(4, 4)
        self.layers = nn.ModuleList([FooLayer() for _ in range(3)])
