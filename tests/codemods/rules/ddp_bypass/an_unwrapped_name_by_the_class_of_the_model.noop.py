# CKPT101 unsafe | bare(batch | reached by model.module
# prelude: ddp

def train_epoch(loader, accumulation):
    bare = model.module if isinstance(model, DDP) else model
    for batch in loader:
        with torch.autocast("cuda"):
            result = bare(batch, attention_mask=batch.mask)
            aux = result.aux_loss if batch.sparse else torch.tensor(0.0)
        policy = -(result.logits * batch.advantage).mean()
        loss = (policy + aux) / accumulation
        loss.backward()

model = make_model()
if torch.distributed.is_initialized():
    model = DDP(model)
train_epoch(make_loader(), 4)
