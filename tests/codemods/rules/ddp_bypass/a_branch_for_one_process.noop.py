# prelude: ddp

class Runner:
    def __init__(self, model, multi_gpu):
        self.model = model
        if multi_gpu:
            self.ddp = DDP(self.model)

    def train(self, loader, multi_gpu):
        for batch in loader:
            if multi_gpu:
                loss = self.ddp(batch)
            else:
                loss = self.model.forward_loss(batch)
            loss.backward()
