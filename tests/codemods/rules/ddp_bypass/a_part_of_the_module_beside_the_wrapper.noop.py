# prelude: ddp

def train(model, loader):
    ddp = DDP(model)
    for batch in loader:
        embedded = ddp.module.embed(batch)
        hidden = ddp(inputs_embeds=embedded).last_hidden_state
        loss = ddp.module.head(hidden).mean()
        loss.backward()
