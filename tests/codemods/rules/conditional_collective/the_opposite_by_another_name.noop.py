# CKPT102 unsafe | dist.all_reduce(loss)
# prelude: collectives

def log(loss, rank):
    is_worker = not (rank == 0)
    if is_worker:
        dist.all_reduce(loss)
