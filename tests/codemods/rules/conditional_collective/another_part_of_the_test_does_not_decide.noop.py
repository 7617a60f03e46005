# CKPT102 unsafe | dist.barrier()
# CKPT102 unsafe | dist.all_reduce(value)
# prelude: collectives

def gather_parts(rank, only_main):
    if only_main and rank != 0:
        return None
    dist.barrier()

def evaluate(rank, everywhere, best):
    if everywhere or rank == 0:
        value = run()
        if best:
            dist.all_reduce(value)
