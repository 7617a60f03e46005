"""A checkpointed function finds its block in the variable of a loop: each recompute runs the last one."""

from torch.utils.checkpoint import checkpoint

from benchmarks.cases.toys import Block, Stack, fit, squares

FAULT = {"says": ["ran block blocks.2 in their place", "late_binding.py:20", "CKPT012"]}
DOORS = {
    "run": FAULT,
    "watch": {"says": ["ran block blocks.2 in their place"]},
    "check": {"exit": 1, "says": ["CKPT012"]},
}


class Late(Stack):
    def forward(self, x):
        x = self.project(x)
        for block in self.blocks:
            # the recompute asks for `block` when the loop is over
            x = checkpoint(lambda y: block(y), x, use_reentrant=False)  # noqa: B023
        return self.head(x)


model = Late(Block)
fit(model, squares(model))
