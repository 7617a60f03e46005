# CKPT101 unsafe | self._get_model().compute_loss | call_through_ddp(ddp, "compute_loss", ...)
# prelude: ddp

class Curriculum:
    def __init__(self, model):
        self.model = DDP(model)

    def _get_model(self):
        if isinstance(self.model, DDP):
            return self.model.module
        return self.model

    def train_stage(self, loader, optimizer):
        for batch in loader:
            loss = self._get_model().compute_loss(batch)
            loss.backward()
            optimizer.step()
