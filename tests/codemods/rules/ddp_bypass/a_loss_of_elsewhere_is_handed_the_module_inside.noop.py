# CKPT101 unknown | diffusion_loss(ddp.module, batch) | if it runs it
# prelude: ddp

def train(model, loader, diffusion_loss):
    ddp = DDP(model)
    for batch in loader:
        loss = diffusion_loss(ddp.module, batch)
        loss.backward()
