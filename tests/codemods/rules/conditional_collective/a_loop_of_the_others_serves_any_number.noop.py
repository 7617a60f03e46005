# prelude: collectives

def serve(value, rank):
    if rank == 0:
        dist.broadcast(value, 0)
        dist.broadcast(torch.zeros(3), 0)
    else:
        while True:
            dist.broadcast(value, 0)
            run(value)

def receive(value):
    while True:
        dist.broadcast(value, 0)

def serve_through_a_function(value, rank):
    if rank == 0:
        dist.broadcast(value, 0)
        dist.broadcast(torch.zeros(3), 0)
        return
    receive(value)
