"""Borrow a model: whatever happens inside the `with`, it is handed back as it was.

Covers one process and one model: attributes, hooks, values, gradients and the random number generators.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from ckpt_surgery.runtime.rng import devices_of, random_state_kept
from ckpt_surgery.runtime.tensors import same_bits


@contextmanager
def left_as_found(model: nn.Module) -> Iterator[None]:
    """Hand `model` back unchanged, also when the body raises.

    Restored on every submodule: the attributes (training mode, checkpointing flags and functions), the contents
    of dictionaries, lists and tensors among them (hooks, registered buffers) but not what lies deeper in those,
    the values of parameters and buffers, their `requires_grad`, and `.grad`, which is None inside. What steps in
    the backward, after a gradient is accumulated, is off inside. Python's, NumPy's and torch's generators get
    their states back.
    Costs one copy of the parameters and buffers on their own device.
    """
    with ExitStack() as stack:
        stack.enter_context(random_state_kept(devices_of(model)))
        stack.enter_context(gradients_aside(model))
        stack.enter_context(_values(model))
        stack.enter_context(_attributes(model))
        yield


@contextmanager
def gradients_aside(model: nn.Module) -> Iterator[None]:
    """No parameter has a gradient inside; afterwards each has the very one that it had before."""
    kept = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in kept:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in kept:
            parameter.grad = gradient


@contextmanager
def _values(model: nn.Module) -> Iterator[None]:
    tensors = [*model.parameters(), *model.buffers()]
    copies = [tensor.detach().clone() for tensor in tensors]
    wanted = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    # such as an optimizer that steps in the backward; as with other hooks, the contents go and not the dictionary
    steps = [(hooks, dict(hooks)) for p in model.parameters() if (hooks := p._post_accumulate_grad_hooks)]
    for hooks, _ in steps:
        hooks.clear()
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, copy in zip(tensors, copies, strict=True):
                if not same_bits(tensor, copy):
                    tensor.copy_(copy)
        for parameter, wants in wanted:
            parameter.requires_grad_(wants)
        for hooks, content in steps:
            hooks.update(content)


@contextmanager
def _attributes(model: nn.Module) -> Iterator[None]:
    modules = list(model.modules())
    attributes = [dict(vars(module)) for module in modules]
    values = [value for names in attributes for value in names.values()]
    # Hook handles refer to the dictionary they were made with, so its contents go back, not a copy of it.
    dictionaries = [(value, dict(value)) for value in values if isinstance(value, dict)]
    lists = [(value, list(value)) for value in values if type(value) is list]
    tensors = [(value, value.detach().clone()) for value in values if type(value) is Tensor]
    try:
        yield
    finally:
        for module, names in zip(modules, attributes, strict=True):
            vars(module).clear()
            vars(module).update(names)
        for dictionary, content in dictionaries:
            dictionary.clear()
            dictionary.update(content)
        for items, elements in lists:
            items[:] = elements
        with torch.no_grad():
            for tensor, copy in tensors:
                if not same_bits(tensor, copy):
                    tensor.copy_(copy)
