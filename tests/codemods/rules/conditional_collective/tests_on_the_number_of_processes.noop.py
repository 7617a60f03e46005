# prelude: collectives

def log(loss, local_rank):
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(loss)
    if local_rank != -1:
        dist.barrier()
    if local_rank >= 0:
        dist.barrier()
