# prelude: collectives

def check(value, rank):
    if rank == 0:
        if value is None:
            raise ValueError("nothing to share")
    if rank == 1:
        raise RuntimeError("unsupported")
    dist.barrier()
