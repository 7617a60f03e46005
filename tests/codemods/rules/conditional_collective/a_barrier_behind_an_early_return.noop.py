# CKPT102 unsafe | dist.barrier() | outside the condition; where one rank is to go first, it needs the same call
# prelude: collectives

def save(model, rank):
    if rank != 0:
        return
    torch.save(model, "model.pt")
    dist.barrier()
    dist.broadcast(model.step, 0)
