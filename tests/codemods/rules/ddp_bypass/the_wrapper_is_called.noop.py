# prelude: ddp


def attributes_and_parameters_of_the_module_inside(model, loader):
    ddp = DDP(model)
    for batch in loader:
        loss = ddp(batch).loss * ddp.module.config.weight
        loss = loss + sum(p.pow(2).sum() for p in ddp.module.parameters())
        loss.backward()
    ddp.module.save_pretrained("out")


def train(model, loader, optimizer):
    ddp = DDP(model)
    for batch in loader:
        with torch.no_grad():
            rollout = ddp.module.generate(batch)
            reference = ddp.module(rollout).logits
        loss = (ddp(rollout).logits - reference).pow(2).mean()
        loss.backward()


@torch.inference_mode()
def evaluate(ddp: DDP, loader):
    return sum(ddp.module(batch).loss for batch in loader)


def a_comment_leaves_it(model, loader):
    ddp = DDP(model)
    for batch in loader:
        loss = ddp.module(batch).sum()  # ckpt: ignore[CKPT101] one process a run
        loss.backward()


def a_part_of_the_module_beside_the_wrapper(model, loader):
    ddp = DDP(model)
    for batch in loader:
        embedded = ddp.module.embed(batch)
        hidden = ddp(inputs_embeds=embedded).last_hidden_state
        loss = ddp.module.head(hidden).mean()
        loss.backward()


def a_model_that_is_wrapped_where_there_are_several_processes(model, loader, distributed):
    bare = model
    if distributed:
        model = DDP(model)
        bare = model.module
    for batch in loader:
        loss = model(batch)
        loss.backward()
    torch.save(bare.state_dict(), "model.pt")


def a_loss_that_nothing_is_derived_from(model, batch):
    ddp = DDP(model)
    value = ddp.module(batch).loss
    print(value.item())
    other = ddp(batch).loss
    other.backward()


def DataParallel_is_another_wrapper(model, loader):
    parallel = torch.nn.DataParallel(model)
    for batch in loader:
        loss = parallel.module(batch).sum()
        loss.backward()


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


class Keeper:
    def __init__(self, model):
        self.model = model

    def objective(self):
        return self.model.forward

    def wrap(self):
        self.model = DDP(self.model)

    def fit(self, loader):
        self.wrap()
        loss_of = self.objective()
        for batch in loader:
            total = loss_of(batch)["total"]
            total.backward()


def warm_up(model, batch):
    model(batch).loss.backward()


def prepare(model, batch, optimizer, rank):
    loss = model(batch).loss
    loss.backward()
    warm_up(model, batch)
    optimizer.step()
    if rank != -1:
        model = DDP(model)
    return model


def a_step_before_the_wrapping(model, loader, optimizer, rank):
    batch = next(iter(loader))
    model = prepare(model, batch, optimizer, rank)
    for batch in loader:
        model(batch).loss.backward()
