# CKPT107 unsafe | model.gradient_checkpointing_enable() | a wrapper (DDP on line 5)
# file: train.py
from torch.nn.parallel import DistributedDataParallel as DDP


def main(model, loader):
    model = DDP(model)
    if hasattr(model, "gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable()
    for batch in loader:
        model(**batch).loss.backward()
