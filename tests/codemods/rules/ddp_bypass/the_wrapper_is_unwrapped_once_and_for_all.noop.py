# CKPT101 unsafe | model(batch)
# prelude: ddp

def main(model, loader, accelerator, optimizer):
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    model = model.module if isinstance(model, DDP) else model
    model.train()
    for batch in loader:
        down, middle = model(batch)
        loss = (down - middle).pow(2).mean()
        accelerator.backward(loss)
