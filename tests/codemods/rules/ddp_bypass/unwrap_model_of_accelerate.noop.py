# CKPT101 unsafe | bare(**batch) | reached by accelerator.unwrap_model(model)
# file: train.py
from accelerate import Accelerator

accelerator = Accelerator()


def train(model, optimizer, loader):
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    bare = accelerator.unwrap_model(model)
    for batch in loader:
        loss = bare(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
