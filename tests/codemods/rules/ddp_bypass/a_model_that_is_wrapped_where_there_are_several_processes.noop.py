# prelude: ddp

def train(model, loader, distributed):
    bare = model
    if distributed:
        model = DDP(model)
        bare = model.module
    for batch in loader:
        loss = model(batch)
        loss.backward()
    torch.save(bare.state_dict(), "model.pt")
