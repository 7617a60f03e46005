# CKPT101 unsafe | ddp.module(batch)
# prelude: ddp

def train(model, batch, optimizer):
    ddp = DDP(model)

    def closure():
        loss = ddp.module(batch).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
