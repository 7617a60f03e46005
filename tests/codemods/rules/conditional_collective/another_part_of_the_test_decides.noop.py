# prelude: collectives

def gather_parts(rank, only_main):
    if only_main and rank != 0:
        return None
    parts = read()
    if not only_main:
        dist.barrier()
    return parts

def evaluate(rank, everywhere, loss):
    if everywhere or rank == 0:
        value = run()
        if everywhere:
            dist.all_reduce(value)
