"""Find parameters that should train and got no gradient so far, and what in the code may be the reason."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Set
from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from ckpt_surgery.guarding.faults import GuardFault, GuardFaultKind
from ckpt_surgery.measure.model_hook import ModelHook
from ckpt_surgery.measure.own_checkpoints import running_modules
from ckpt_surgery.runtime.blocks.discovery import enclosing, owner_of
from ckpt_surgery.runtime.tools.classes import is_flattened


class UntrainedParameters:
    """Watches the parameters of `model` that require gradient until each has had a nonzero one.

    Those that have none after `patience` steps are a fault, once. What hooks saw stays on the device until the end of
    a step in which it is looked at, or of the last: nothing waits for a device in other steps. A sharded parameter
    counts as trained once it gets a gradient at all: a rank sees a part of it, which may be zero or empty. Parameters
    `flattened` by FSDP1, which hooks do not see, are only counted. If the script has told DistributedDataParallel to
    expect unused parameters, those of parts that never ran are not a fault.
    """

    def __init__(self, model: nn.Module, patience: int) -> None:
        self._model = model
        self._expects_unused = False
        self._patience = patience
        self._steps = 0
        self.flattened = 0
        self._handles: dict[str, RemovableHandle] = {}
        self._nonzero: dict[str, Tensor] = {}
        self._untrained: tuple[str, ...] = ()

    @property
    def without(self) -> tuple[str, ...]:
        """The parameters that have had no gradient so far."""
        return self._untrained or tuple(name for name in self._handles if name not in self._nonzero)

    def begin(self) -> None:
        """Start watching, in the first forward, the parameters that have had no gradient yet."""
        if self._steps:
            return
        outer = [module for module in running_modules() if isinstance(module, DistributedDataParallel)]
        self._expects_unused = any(wrapper.find_unused_parameters for wrapper in outer)
        self.flattened = sum(map(is_flattened, self._model.parameters()))
        for name, parameter in self._model.named_parameters():
            if name in self._handles or is_flattened(parameter):
                continue
            if parameter.requires_grad and parameter.is_leaf:
                sharded = isinstance(parameter, DTensor)
                register = parameter.register_post_accumulate_grad_hook if sharded else parameter.register_hook
                self._handles[name] = register(ModelHook(partial(self._note, name)))  # type: ignore[no-untyped-call]

    def end(self, ran: Set[str], *, look: bool) -> list[GuardFault]:
        """Return the fault once `patience` steps are over; `ran` names the modules that ran.

        This waits for the device then, and if `look` is set.
        """
        if not self._handles:
            return []
        self._steps += 1
        last = self._steps == self._patience
        if look or last:
            self._drop_those_with_gradients()
        if not last:
            return []
        names = self._untrained = tuple(self._handles)
        self.remove()
        if self._expects_unused:
            names = tuple(name for name in names if not ran.isdisjoint(enclosing(name)))
        return [GuardFault(GuardFaultKind.UNTRAINED, names, steps=self._steps)] if names else []

    def remove(self) -> None:
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()
        self._nonzero.clear()

    def _note(self, name: str, gradient: Tensor | None) -> None:
        if gradient is None:  # custom functions may give none
            return
        sharded = isinstance(gradient, DTensor)  # its hook gets the parameter, which has a gradient
        nonzero = torch.ones((), dtype=torch.bool) if sharded else gradient.detach().ne(0).any()
        before = self._nonzero.get(name)
        self._nonzero[name] = nonzero if before is None else before | nonzero

    def _drop_those_with_gradients(self) -> None:
        for name in [name for name, nonzero in self._nonzero.items() if bool(nonzero)]:
            self._handles.pop(name).remove()
            del self._nonzero[name]


def faulty_branches(model: nn.Module, blocks: Collection[str], parameters: Collection[str]) -> tuple[str, ...]:
    """Return what `check` finds in the code that checkpoints those `blocks` that hold some of `parameters`.

    That is code which drops an argument that it passes without checkpointing, or passes another one.
    """
    modules = dict(model.named_modules())
    inside = [block for block in blocks if any(name.startswith(f"{block}.") for name in parameters)]
    owners = {type(modules[owner_of(block, modules)]) for block in inside}
    kinds = {next(kind for kind in owner.__mro__ if "forward" in vars(kind)) for owner in owners}
    return tuple(said for kind in kinds for said in _branches_of(kind))


@cache
def _branches_of(kind: type) -> tuple[str, ...]:
    try:
        from ckpt_surgery.static.check import check  # its packages are not needed to watch a model

        file = inspect.getfile(kind)
        found = check(file, select="CKPT002", include_unsupported=True, jobs=1, cache=False).findings
    except Exception:  # a class without a file, or source that cannot be checked
        return ()
    here = (f for f in found if f.path == file and f.class_name == kind.__name__ and f.differing)
    return tuple(f"check finds {f.code} at {f.path}:{f.line}: {f.message}" for f in here)
