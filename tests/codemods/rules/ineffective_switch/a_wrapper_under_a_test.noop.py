# file: train.py
from torch.nn.parallel import DistributedDataParallel as DDP


def main(model, loader, several):
    if several:
        model = DDP(model)
    model.gradient_checkpointing_enable()
    for batch in loader:
        model(**batch).loss.backward()
