# CKPT102 unsafe | dist.all_reduce(p.grad) | mix the gradients of different parameters
# prelude: collectives

def average(model):
    for name, p in model.named_parameters():
        if p.grad is None:
            continue
        dist.all_reduce(p.grad)
