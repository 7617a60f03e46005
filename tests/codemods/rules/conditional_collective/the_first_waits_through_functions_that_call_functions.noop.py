# prelude: collectives

def share_from_the_first(value, rank):
    if rank == 0:
        dist.broadcast(value, 0)
    else:
        take(value)

def take(value):
    receive(value)

def receive(value):
    dist.broadcast(value, 0)
