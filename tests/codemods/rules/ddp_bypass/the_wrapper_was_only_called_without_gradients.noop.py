# CKPT101 unsafe | ddp.module(batch)
# prelude: ddp

def train(model, loader):
    ddp = DDP(model)
    for batch in loader:
        with torch.no_grad():
            target = ddp(batch)
        loss = (ddp.module(batch) - target).pow(2).mean()
        loss.backward()
