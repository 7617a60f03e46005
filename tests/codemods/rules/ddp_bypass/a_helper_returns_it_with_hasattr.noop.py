# CKPT101 unsafe | self.bare()(batch) | reached by self.model.module
# prelude: ddp

class Runner:
    def build(self, model):
        self.model = DDP(model)

    def bare(self):
        return self.model.module if hasattr(self.model, "module") else self.model

    def step(self, batch):
        return self.bare()(batch).loss

    def fit(self, loader):
        for batch in loader:
            loss = self.step(batch)
            loss.backward()
