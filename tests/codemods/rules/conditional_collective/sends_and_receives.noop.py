# prelude: collectives

def pass_on(value, rank):
    if rank == 0:
        dist.send(value, 1)
        dist.isend(value, 2)
    else:
        dist.recv(value, 0)
