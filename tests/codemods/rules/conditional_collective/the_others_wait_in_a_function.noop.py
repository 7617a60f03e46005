# prelude: collectives

def load(rank):
    data = read()
    if rank == 0:
        dist.barrier()
    return data

def main(rank):
    if rank != 0:
        dist.barrier()
    return load(rank)
