# CKPT102 unsafe | dist.all_reduce(loss) | `dist.get_rank() == 0` on line 6 decides
# prelude: collectives

def log(loss):
    if dist.get_rank() == 0:
        dist.all_reduce(loss)
        print(loss)
