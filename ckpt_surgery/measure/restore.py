"""Context managers that restore a model on exit: attributes, hooks, values, gradients and random number generators.

They cover one model in one process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ckpt_surgery.measure.generators import devices_of, own_generators, random_state_kept, set_state, state_of
from ckpt_surgery.runtime.tools.tensors import same_bits


@contextmanager
def model_state_kept(model: nn.Module) -> Iterator[None]:
    """Restore `model` on exit, also after an exception.

    Restored on every submodule are its attributes (training mode, checkpointing flags and functions), the contents of
    the dictionaries, lists and tensors among them (hooks, registered buffers) but no deeper, the values of parameters
    and buffers, and of parameters `requires_grad`, `.grad` and the hooks on their gradients. The states of Python's,
    NumPy's and torch's generators are restored too, as are those of generators among the attributes.

    Inside, every `.grad` starts as None, and post-accumulate-grad hooks are off, such as those of an optimizer that
    steps in the backward.

    Costs one copy of the parameters and buffers, on their own device.
    """
    with ExitStack() as stack:
        stack.enter_context(random_state_kept(devices_of(model)))
        stack.enter_context(without_gradients(model))
        stack.enter_context(_values(model))
        stack.enter_context(_attributes(model))
        yield


@contextmanager
def without_gradients(model: nn.Module) -> Iterator[None]:
    """Set every `.grad` to None, and put the same tensors back on exit."""
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient


@contextmanager
def _values(model: nn.Module) -> Iterator[None]:
    tensors = [*model.parameters(), *model.buffers()]
    copies = [tensor.detach().clone() for tensor in tensors]
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    # Hook handles refer to these dictionaries: their contents go and come back, they themselves stay.
    hook_tables = [(hooks, dict(hooks)) for p in model.parameters() if (hooks := p._post_accumulate_grad_hooks)]
    for hooks, _ in hook_tables:
        hooks.clear()
    on_gradients = [(parameter, dict(parameter._backward_hooks or {})) for parameter in model.parameters()]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, copy in zip(tensors, copies, strict=True):
                if not same_bits(tensor, copy):
                    tensor.copy_(copy)
        for parameter, requires_grad in flags:
            parameter.requires_grad_(requires_grad)
        for hooks, content in hook_tables:
            hooks.update(content)
        for parameter, content in on_gradients:
            if parameter._backward_hooks is not None:
                parameter._backward_hooks.clear()
                parameter._backward_hooks.update(content)


@contextmanager
def _attributes(model: nn.Module) -> Iterator[None]:
    modules = list(model.modules())
    attributes = [dict(vars(module)) for module in modules]
    values = [value for namespace in attributes for value in namespace.values()]
    # Hook handles refer to the dictionary they were made with: restore its contents, do not replace it by a copy.
    # Those that cannot be written into, such as the configurations of diffusers, have not changed either.
    dictionaries = [(value, dict(value)) for value in values if isinstance(value, dict)]
    lists = [(value, list(value)) for value in values if type(value) is list]
    tensors = [(value, value.detach().clone()) for value in values if type(value) is Tensor]
    generators = [(generator, state_of(generator)) for _, generator in own_generators(model)]
    try:
        yield
    finally:
        for module, namespace in zip(modules, attributes, strict=True):
            vars(module).clear()
            vars(module).update(namespace)
        for dictionary, content in dictionaries:
            if (dictionary or content) and identities(dictionary) != identities(content):  # most are empty
                dictionary.clear()
                dictionary.update(content)
        for items, elements in lists:
            items[:] = elements
        for generator, state in generators:
            set_state(generator, state)
        with torch.no_grad():
            for tensor, copy in tensors:
                if not same_bits(tensor, copy):
                    tensor.copy_(copy)


def identities(container: Any) -> list[tuple[Any, int]]:
    """List the ids of the objects in a dictionary or another collection, each with its key or index."""
    pairs = container.items() if isinstance(container, dict) else enumerate(container)
    return [(key, id(value)) for key, value in pairs]
