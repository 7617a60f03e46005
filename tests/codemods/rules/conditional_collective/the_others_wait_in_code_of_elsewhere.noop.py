# prelude: collectives

def serve(model, server):
    if dist.get_rank() == 0:
        server.serve()
        dist.broadcast(torch.tensor([1]), src=0)
    elif dist.get_rank() > 0:
        model.work_for_rank_0()

def work(model):
    while True:
        model.wait_for_input()

def through_a_function(model, rank):
    if rank != 0:
        work(model)
        return
    dist.broadcast(torch.tensor([1]), src=0)
