# prelude: ddp

class Runner:
    def __init__(self, model):
        self.model = model

    def objective(self):
        return self.model.forward

    def wrap(self):
        self.model = DDP(self.model)

    def fit(self, loader):
        self.wrap()
        loss_of = self.objective()
        for batch in loader:
            total = loss_of(batch)["total"]
            total.backward()
