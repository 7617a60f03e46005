# prelude: collectives

def average(model):
    for p in model.parameters():
        if p.requires_grad:
            grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(grad)
            if p.grad is None:
                p.grad = grad
