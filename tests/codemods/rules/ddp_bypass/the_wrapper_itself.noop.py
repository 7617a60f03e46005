# prelude: ddp

def train(model, loader, optimizer):
    ddp = DDP(model)
    for batch in loader:
        loss = ddp(batch).loss
        loss.backward()
        optimizer.step()
    torch.save(ddp.module.state_dict(), "model.pt")
