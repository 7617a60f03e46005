# CKPT102 unsafe | dist.all_reduce(loss) | depending on `dist.get_rank() == 0` on line 6: the ranks wait
# prelude: collectives

def log(loss):
    if dist.get_rank() == 0:
        dist.all_reduce(loss)
        print(loss)
