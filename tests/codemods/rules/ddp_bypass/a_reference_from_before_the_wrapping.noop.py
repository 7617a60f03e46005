# CKPT101 unsafe | inner(batch)
# prelude: ddp

def main(model, loader):
    inner = model
    model = DDP(model)
    for batch in loader:
        out = inner(batch)
        loss = torch.nn.functional.cross_entropy(out.logits, batch.labels)
        loss.backward()
