"""Borrow a model: whatever happens inside the `with`, it is handed back as it was.

Covers one process and one model: attributes, hooks, values, gradients and the random number generators.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def left_as_found(model: nn.Module) -> Iterator[None]:
    """Hand `model` back unchanged, also when the body raises.

    Restored on every submodule: the attributes (training mode, checkpointing flags and functions), the
    contents of dictionaries among them (hooks, registered buffers), the values of parameters and buffers,
    their `requires_grad`, and `.grad`, which is None inside. Python's, NumPy's and torch's generators get
    their states back.
    Costs one copy of the parameters and buffers on their own device.
    """
    with ExitStack() as stack:
        stack.enter_context(_random_states(model))
        stack.enter_context(_values(model))
        stack.enter_context(_attributes(model))
        yield


@contextmanager
def _random_states(model: nn.Module) -> Iterator[None]:
    devices = {p.device for p in model.parameters()} | {b.device for b in model.buffers()}
    python_state = random.getstate()
    numpy = sys.modules.get("numpy")  # a generator nobody imported cannot have been used
    numpy_state = numpy.random.get_state() if numpy else None
    try:
        with torch.random.fork_rng(devices=[d for d in devices if d.type == "cuda"]):
            yield
    finally:
        random.setstate(python_state)
        if numpy:
            numpy.random.set_state(numpy_state)


@contextmanager
def _values(model: nn.Module) -> Iterator[None]:
    tensors = [*model.parameters(), *model.buffers()]
    copies = [tensor.detach().clone() for tensor in tensors]
    gradients = [(p, p.grad, p.requires_grad) for p in model.parameters()]
    for parameter, *_ in gradients:
        parameter.grad = None
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, copy in zip(tensors, copies, strict=True):
                if not torch.equal(tensor, copy):
                    tensor.copy_(copy)
        for parameter, gradient, wanted in gradients:
            parameter.requires_grad_(wanted)
            parameter.grad = gradient


@contextmanager
def _attributes(model: nn.Module) -> Iterator[None]:
    modules = list(model.modules())
    attributes = [dict(vars(module)) for module in modules]
    # Hook handles refer to the dictionary they were made with, so its contents go back, not a copy of it.
    contents: list[tuple[dict[Any, Any], dict[Any, Any]]] = [
        (value, dict(value)) for names in attributes for value in names.values() if isinstance(value, dict)
    ]
    try:
        yield
    finally:
        for module, names in zip(modules, attributes, strict=True):
            vars(module).clear()
            vars(module).update(names)
        for dictionary, content in contents:
            dictionary.clear()
            dictionary.update(content)
