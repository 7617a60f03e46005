# prelude: collectives

def load(local_rank):
    if local_rank not in [-1, 0]:
        dist.barrier()
    data = read()
    if local_rank == 0:
        dist.barrier()
    return data

def build(rank):
    if rank != 0:
        dist.barrier()
        return read()
    write()
    dist.barrier()
    return read()
