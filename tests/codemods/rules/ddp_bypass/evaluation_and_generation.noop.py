# prelude: ddp

def train(model, loader, optimizer):
    ddp = DDP(model)
    for batch in loader:
        with torch.no_grad():
            rollout = ddp.module.generate(batch)
            reference = ddp.module(rollout).logits
        loss = (ddp(rollout).logits - reference).pow(2).mean()
        loss.backward()

@torch.inference_mode()
def evaluate(ddp: DDP, loader):
    return sum(ddp.module(batch).loss for batch in loader)
