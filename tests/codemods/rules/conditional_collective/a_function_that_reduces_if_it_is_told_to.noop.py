# prelude: collectives

def load(rank, evaluate):
    if rank != 0 and not evaluate:
        dist.barrier()
    data = read()
    if rank == 0 and not evaluate:
        dist.barrier()
    return data

def mean(value, local=False):
    if local:
        return value
    dist.all_reduce(value)

def check(rank, value):
    data = load(rank, evaluate=True)
    return data, mean(value, local=True)

def train(rank, value):
    if rank == 0:
        check(rank, value)
        load(rank, evaluate=True)
        mean(value, local=True)
