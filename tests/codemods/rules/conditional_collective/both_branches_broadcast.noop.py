# prelude: collectives

def share(value, rank):
    if rank == 0:
        value = compute()
        dist.broadcast(value, 0)
    else:
        dist.broadcast(torch.empty(3), 0)
