# CKPT102 unsafe | dist.all_reduce(loss) | on line 6, unless `everywhere` is true
# CKPT102 unsafe | dist.barrier() | on line 8: the ranks wait
# prelude: collectives

def evaluate(loss, everywhere):
    if everywhere or dist.get_rank() == 0:
        dist.all_reduce(loss)
    if dist.get_rank() == 0:
        dist.barrier()
