# CKPT101 unsafe | self.bare()(batch) | reached by self.model.module
# file: train.py
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


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
