# CKPT101 unsafe | loss_of(unwrap(model), batch)
# file: train.py
from accelerate import Accelerator

accelerator = Accelerator()


def unwrap(model):
    model = accelerator.unwrap_model(model)
    return model._orig_mod if hasattr(model, "_orig_mod") else model


def loss_of(module, batch):
    return module(**batch).loss


def train(model, optimizer, loader):
    model, optimizer = accelerator.prepare(model, optimizer)
    for batch in loader:
        accelerator.backward(loss_of(unwrap(model), batch))
