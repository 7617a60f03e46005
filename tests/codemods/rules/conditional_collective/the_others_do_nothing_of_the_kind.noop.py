# CKPT102 unsafe | dist.all_reduce(loss)
# prelude: collectives

def log(loss, rank, logger):
    if rank == 0:
        dist.all_reduce(loss)
    else:
        losses = []
        losses.append(torch.zeros(1).cuda().item())
        logger.info("waiting")
