"""A checkpointing function of the script's own asks for the layer behind the function it gets (LLaMA-Factory)."""

import functools

from torch.utils.checkpoint import checkpoint

from benchmarks.cases.toys import fit, llama

NEEDS = ["transformers<5"]
DOORS = {"run": {}, "watch": {}, "wrap": {}}


def function(forward, *arguments, **keywords):
    layer = (forward.func if isinstance(forward, functools.partial) else forward).__self__
    if any(parameter.requires_grad for parameter in layer.parameters()):
        arguments[0].requires_grad_(True)
    return checkpoint(forward, *arguments, use_reentrant=True, **keywords)


model = llama()
model._set_gradient_checkpointing(enable=True, gradient_checkpointing_func=function)
fit(model)
