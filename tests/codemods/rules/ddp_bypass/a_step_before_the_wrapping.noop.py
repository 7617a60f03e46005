# prelude: ddp

def warm_up(model, batch):
    model(batch).loss.backward()

def prepare(model, batch, optimizer, rank):
    loss = model(batch).loss
    loss.backward()
    warm_up(model, batch)
    optimizer.step()
    if rank != -1:
        model = DDP(model)
    return model

def main(model, loader, optimizer, rank):
    batch = next(iter(loader))
    model = prepare(model, batch, optimizer, rank)
    for batch in loader:
        model(batch).loss.backward()
