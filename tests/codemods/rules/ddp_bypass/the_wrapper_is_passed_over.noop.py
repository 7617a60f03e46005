# CKPT101 unsafe | ddp.module(batch) | the backward on line 9 synchronises no gradient; call the wrapper, or sync
# CKPT101 unsafe | model.module.compute_loss | call_through_ddp(ddp, "compute_loss", ...)
# CKPT101 unsafe | ddp.module(batch)
# CKPT101 unsafe | inner(batch)
# CKPT101 unsafe | model(batch)
# CKPT101 unsafe | model(batch)
# CKPT101 unsafe | ddp.module(batch)
# CKPT101 unsafe | self.bare()(batch) | reached by self.model.module
# CKPT101 unsafe | self._get_model().compute_loss | call_through_ddp(ddp, "compute_loss", ...)
# CKPT101 unsafe | loss_of(batch)["total"] | reached by self.model.module
# prelude: ddp


def the_module_inside_the_wrapper(model, loader, optimizer):
    ddp = DDP(model)
    for batch in loader:
        loss = ddp.module(batch).loss
        loss.backward()
        optimizer.step()


def another_method_of_the_module_inside(model, loader, scaler):
    model = DDP(model.cuda(), device_ids=[0])
    for batch in loader:
        total = model.module.compute_loss(batch) / 4
        scaler.scale(total).backward()


def a_closure_of_the_optimizer(model, batch, optimizer):
    ddp = DDP(model)

    def closure():
        loss = ddp.module(batch).sum()
        loss.backward()
        return loss

    optimizer.step(closure)


def a_reference_from_before_the_wrapping(model, loader):
    inner = model
    model = DDP(model)
    for batch in loader:
        out = inner(batch)
        loss = torch.nn.functional.cross_entropy(out.logits, batch.labels)
        loss.backward()


def a_step_before_the_wrapping_and_again_after_it(model, stages, optimizer):
    for batch in stages:
        loss = model(batch).loss
        loss.backward()
        optimizer.step()
        wrapper = DDP(model)
        wrapper(batch).loss.backward()


def the_wrapper_is_unwrapped_once_and_for_all(model, loader, accelerator, optimizer):
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    model = model.module if isinstance(model, DDP) else model
    model.train()
    for batch in loader:
        down, middle = model(batch)
        loss = (down - middle).pow(2).mean()
        accelerator.backward(loss)


def the_wrapper_was_only_called_without_gradients(model, loader):
    ddp = DDP(model)
    for batch in loader:
        with torch.no_grad():
            target = ddp(batch)
        loss = (ddp.module(batch) - target).pow(2).mean()
        loss.backward()


class Either:
    def build(self, model):
        self.model = DDP(model)

    def bare(self):
        return self.model.module if hasattr(self.model, "module") else self.model

    def step(self, batch):
        return self.bare()(batch).loss

    def fit(self, loader):
        for batch in loader:
            loss = self.step(batch)
            loss.backward()


class Curriculum:
    def __init__(self, model):
        self.model = DDP(model)

    def _get_model(self):
        if isinstance(self.model, DDP):
            return self.model.module
        return self.model

    def train_stage(self, loader, optimizer):
        for batch in loader:
            loss = self._get_model().compute_loss(batch)
            loss.backward()
            optimizer.step()


class Keeper:
    def __init__(self, model, loss_of=None):
        self.model = model
        self.loss_of = loss_of
        self.wrapped = False

    def bare(self):
        if self.wrapped:
            return self.model.module
        return self.model

    def objective(self):
        if self.loss_of is None:
            return self.bare().loss
        return self.loss_of

    def wrap(self):
        self.wrapped = True
        self.model = DDP(self.model)

    def fit(self, loader):
        self.wrap()
        loss_of = self.objective()
        for batch in loader:
            total = loss_of(batch)["total"]
            total.backward()
