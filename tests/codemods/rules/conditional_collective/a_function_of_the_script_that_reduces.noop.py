# CKPT102 unsafe | print(mean(loss)) | mean(...) runs on some ranks only
# prelude: collectives

def mean(value):
    if not dist.is_initialized():
        return value
    dist.all_reduce(value)
    return value / dist.get_world_size()

def report(loss, local_rank):
    if local_rank == 0:
        print(mean(loss))
