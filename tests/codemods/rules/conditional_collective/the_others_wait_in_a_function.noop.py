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

def share(value, rank):
    if rank == 0:
        dist.broadcast(value, 0)
    else:
        take(value)

def take(value):
    receive(value)

def receive(value):
    dist.broadcast(value, 0)
