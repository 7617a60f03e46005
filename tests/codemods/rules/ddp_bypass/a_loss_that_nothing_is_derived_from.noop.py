# prelude: ddp

def measure(model, batch):
    ddp = DDP(model)
    value = ddp.module(batch).loss
    print(value.item())
    other = ddp(batch).loss
    other.backward()
