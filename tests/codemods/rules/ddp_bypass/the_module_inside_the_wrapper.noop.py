# CKPT101 unsafe | ddp.module(batch) | the backward on line 9 synchronises no gradient; call the wrapper, or sync
# prelude: ddp

def train(model, loader, optimizer):
    ddp = DDP(model)
    for batch in loader:
        loss = ddp.module(batch).loss
        loss.backward()
        optimizer.step()
