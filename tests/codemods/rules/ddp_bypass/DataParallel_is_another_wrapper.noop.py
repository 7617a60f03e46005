# prelude: ddp

def train(model, loader):
    parallel = torch.nn.DataParallel(model)
    for batch in loader:
        loss = parallel.module(batch).sum()
        loss.backward()
