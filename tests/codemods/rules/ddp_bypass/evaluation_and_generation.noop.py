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

def measure(model, batch):
    ddp = DDP(model)
    value = ddp.module(batch).loss
    print(value.item())
    ddp(batch).loss.backward()

def train_by_a_method(model, loader):
    ddp = DDP(model)
    for batch in loader:
        loss = call_through_ddp(ddp, "compute_loss", batch)
        loss.backward()
