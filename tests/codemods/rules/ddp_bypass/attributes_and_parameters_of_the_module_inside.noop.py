# prelude: ddp

def train(model, loader):
    ddp = DDP(model)
    for batch in loader:
        loss = ddp(batch).loss * ddp.module.config.weight
        loss = loss + sum(p.pow(2).sum() for p in ddp.module.parameters())
        loss.backward()
    ddp.module.save_pretrained("out")
