# CKPT101 unsafe | self._get_model().compute_loss | call_through_ddp(ddp, "compute_loss", ...)
# file: train.py
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


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
