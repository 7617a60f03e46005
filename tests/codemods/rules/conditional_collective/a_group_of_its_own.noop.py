# prelude: collectives

def pair(value, rank, group, members):
    if rank in members:
        dist.all_reduce(value, group=group)
    if rank < 2:
        dist.broadcast(value, 0, group)
        dist.barrier(group)
