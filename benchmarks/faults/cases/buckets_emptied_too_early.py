"""ZeRO ends its backward when the outer graph has its gradients: those of reentrant blocks come too late.

Each reentrant recompute runs a backward of its own. What comes after the end of the first phase stays in the bucket,
and the step is made without it.
"""

import torch
from torch import nn
from torch.autograd import Variable
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import STEPS, Switched, number

FAULT = {
    "source": "https://github.com/deepspeedai/DeepSpeed/commit/311674ffadc7e456819b3e66950c8a5fe1320749",
    "kind": "wrapper and sharding",
    "saw": "gradients stay in the bucket until the next step, which fails or loses them",
    "right": "the end of the backward is queued as a callback of the whole graph task",
    "cause": ["lost updates", "updates lost", "loses updates", "CKPT104", "use_reentrant=False"],
}
MENDED = False


class Zero:
    """Takes gradients as they come, and hands them to the optimizer at the end of a backward."""

    def __init__(self, model, lr=0.1):
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.lr = lr
        self.bucket, self.reduced = {}, {}
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(self.ready)

    def backward(self, loss):
        self.bucket.clear()
        self.expected = len(reachable(loss.grad_fn))
        self.queued = False
        loss.backward()

    def ready(self, parameter):
        self.bucket[parameter] = parameter.grad
        parameter.grad = None
        if MENDED:
            if not self.queued:
                self.queued = True
                Variable._execution_engine.queue_callback(self.end)
        elif len(self.bucket) == self.expected:
            self.end()

    def end(self):
        self.reduced = dict(self.bucket)
        self.bucket.clear()

    @torch.no_grad()
    def step(self):
        for parameter, gradient in self.reduced.items():
            parameter -= self.lr * gradient
        self.reduced.clear()


def reachable(root):
    """Find the parameters at the leaves of a graph."""
    found, seen, todo = set(), set(), [root]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(node.variable)
        todo += [next_node for next_node, _ in node.next_functions]
    return found


class Model(Switched):
    use_reentrant = True

    def __init__(self, width=16):
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(3)
        )
        self.head = nn.Linear(width, 1)

    def forward(self, x, y):
        x = self.embed(x)
        for block in self.blocks:
            x = x + (checkpoint(block, x, use_reentrant=True) if self.gradient_checkpointing else block(x))
        return nn.functional.mse_loss(self.head(x), y)


def make():
    torch.manual_seed(0)
    return Model(), {"x": torch.rand(6, 4), "y": torch.rand(6, 1)}


def losses(prepare=lambda model: None, steps=STEPS):
    model, batch = make()
    prepare(model)
    optimizer, seen = Zero(model), []
    for step in range(steps):
        loss = model(**batch)
        optimizer.backward(loss)
        optimizer.step()
        seen.append(loss.item())
        print("step", step, "loss", seen[-1], flush=True)
    return seen


def symptom():
    return number("loss after 20 steps", losses()[-1], losses(Model.gradient_checkpointing_disable)[-1])


if __name__ == "__main__":
    losses()
