# CKPT101 unsafe | model.module.compute_loss | call_through_ddp(ddp, "compute_loss", ...)
# prelude: ddp

def train(model, loader, scaler):
    model = DDP(model.cuda(), device_ids=[0])
    for batch in loader:
        total = model.module.compute_loss(batch) / 4
        scaler.scale(total).backward()
