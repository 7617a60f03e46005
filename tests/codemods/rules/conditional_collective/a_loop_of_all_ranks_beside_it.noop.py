# CKPT102 unsafe | dist.all_reduce(total)
# prelude: collectives

def evaluate(batches, total, rank):
    for batch in batches:
        dist.all_reduce(batch)
    if rank == 0:
        dist.all_reduce(total)
