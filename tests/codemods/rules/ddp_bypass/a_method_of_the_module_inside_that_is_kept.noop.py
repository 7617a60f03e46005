# CKPT101 unsafe | loss_of(batch)["total"] | reached by self.model.module
# prelude: ddp

class Runner:
    def __init__(self, model, loss_of=None):
        self.model = model
        self.loss_of = loss_of
        self.wrapped = False

    def bare(self):
        if self.wrapped:
            return self.model.module
        return self.model

    def objective(self):
        if self.loss_of is None:
            return self.bare().loss
        return self.loss_of

    def wrap(self):
        self.wrapped = True
        self.model = DDP(self.model)

    def fit(self, loader):
        self.wrap()
        loss_of = self.objective()
        for batch in loader:
            total = loss_of(batch)["total"]
            total.backward()
