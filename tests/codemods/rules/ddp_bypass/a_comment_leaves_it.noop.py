# prelude: ddp

def train(model, loader):
    ddp = DDP(model)
    for batch in loader:
        loss = ddp.module(batch).sum()  # ckpt: ignore[CKPT101] one process a run
        loss.backward()
