# CKPT101 unsafe | ddp.module(batch)
# prelude: ddp

def train(model, loader, optimizer):
    ddp = DDP(model)
    for batch in loader:
        sync_gradients(ddp)
        loss = ddp.module(batch).sum()
        loss.backward()
        optimizer.step()
