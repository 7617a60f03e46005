# CKPT102 unsafe | dist.all_reduce(p.grad) | use sync_gradients(model)
# prelude: collectives

def average(model):
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
