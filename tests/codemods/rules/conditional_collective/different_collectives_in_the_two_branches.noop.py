# CKPT102 unsafe | dist.broadcast(value, 0)
# CKPT102 unsafe | dist.all_reduce(value)
# prelude: collectives

def exchange(value, rank):
    if rank == 0:
        dist.broadcast(value, 0)
    else:
        dist.all_reduce(value)
