# CKPT102 unsafe | dist.barrier() | `rank != 0` on line 6
# prelude: collectives

def save(model, rank):
    if rank != 0:
        return
    torch.save(model, "model.pt")
    dist.barrier()
    dist.broadcast(model.step, 0)
