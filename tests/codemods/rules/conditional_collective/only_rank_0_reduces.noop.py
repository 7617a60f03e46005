# CKPT102 unsafe | dist.all_reduce(loss) | depending on `dist.get_rank() == 0` on line 6: the ranks wait
# CKPT102 unsafe | dist.all_reduce(total) | depending on `rank == 0`
# prelude: collectives

def log(loss):
    if dist.get_rank() == 0:
        dist.all_reduce(loss)
        print(loss)

def evaluate(batches, total, rank):
    for batch in batches:
        dist.all_reduce(batch)
    if rank == 0:
        dist.all_reduce(total)
