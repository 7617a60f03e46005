"""The models that a process trains: found at their first forward, wrapped where asked for, and guarded.

One hook of torch's on every module, or hooks on the modules of one, find them. They look at each module once.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakSet, ref

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel

from ckpt_surgery.errors import CkptSurgeryError
from ckpt_surgery.guarding.guard import Guard, GuardOptions
from ckpt_surgery.guarding.report import GuardReport
from ckpt_surgery.measure.model_hook import ModelHook
from ckpt_surgery.measure.switch import blocks_of, has_surgery
from ckpt_surgery.model_patches.release_names import FUNCTION
from ckpt_surgery.runtime.blocks.library_switch import flags_of, options_of
from ckpt_surgery.runtime.surgery.wrap import wrap_blocks
from ckpt_surgery.undo import Undoable, UndoableHooks

Operation = Callable[..., Undoable]
"""Something to do to a model instead of `wrap_blocks`; its keyword `running` says that a forward has begun."""


@dataclass(frozen=True, slots=True)
class TakeoverOptions:
    """The options of a takeover: `wrap_options` go to `wrap_blocks`, or the `operation` is done in its place.

    With `wrap` None, models are wrapped on which the script has switched checkpointing on.
    """

    wrap: bool | None = None
    wrap_options: Mapping[str, Any] = field(default_factory=dict)
    operation: Operation | None = None
    guard_options: GuardOptions = field(default_factory=partial(GuardOptions, on_fault="collect"))


class Trained:
    """A model that was trained, or what is known of it: the script may have let go of it since.

    `name` is that of its class, and `problems` are what went wrong.
    """

    def __init__(
        self, model: nn.Module, guard: Guard | None, surgery: Undoable | None, problems: tuple[str, ...]
    ) -> None:
        self.name = type(model).__name__
        self.problems = problems
        self._report: GuardReport | None = None
        self._table = "" if surgery is None else str(surgery)
        self._guard: Callable[[], Guard | None] = (lambda: None) if guard is None else ref(guard)
        held = guard is None or surgery is None
        self._surgery: Callable[[], Undoable | None] = (lambda: surgery) if held else ref(surgery)
        if guard is not None:  # it holds the surgery, and both go when the model goes
            guard.at_end = partial(self._keep, surgery)

    @property
    def surgery(self) -> Undoable | None:
        """The surgery of `wrap_blocks`, or what the operation made; None without it, or where the model is gone."""
        return self._surgery()

    @property
    def report(self) -> GuardReport | None:
        """The report of its guard; None where it could have none."""
        watching = self._guard()
        return self._report if watching is None else watching.report()

    @property
    def table(self) -> str:
        """The table of its surgery; empty where it got none."""
        return self._table if self.surgery is None else str(self.surgery)

    def release(self) -> None:
        """Take its guard and its surgery off. Raises CkptSurgeryError where the script has taken the model apart."""
        for change in (self._guard(), self.surgery):
            if change is not None:
                change.__exit__(None, None, None)

    def _keep(self, surgery: Undoable | None, watching: Guard) -> None:
        self._report = watching.report()
        self._table = "" if surgery is None else str(surgery)


class Takeover:
    """Wraps and guards the models of this process, from `install` to `remove`. `say` is told what cannot be done.

    After `looking.undo()` no more models are found; those that were stay wrapped and guarded.
    """

    def __init__(self, options: TakeoverOptions, say: Callable[[str], None]) -> None:
        self.trained: list[Trained] = []
        self._options = options
        self._say = say
        self._process = os.getpid()
        self._seen: WeakSet[nn.Module] = WeakSet()
        self.looking = UndoableHooks()
        self._needs_blocks = False

    def install(self) -> None:
        """Look at every module that runs from now on."""
        self.looking = UndoableHooks([register_module_forward_pre_hook(self._look)])

    def install_on(self, model: nn.Module) -> None:
        """Look at the modules of this one alone: what a training calls need not be the model."""
        self._needs_blocks = True
        look = ModelHook(self._look)
        self.looking = UndoableHooks(module.register_forward_pre_hook(look) for module in model.modules())

    def remove(self) -> None:
        """Look no more, and take guards and surgeries off."""
        self.looking.undo()
        for trained in self.trained:
            self._tried([], trained.release)

    def _look(self, module: nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling():  # first of all: the compiler reads no further then
            return
        if module in self._seen or not module.training or not torch.is_grad_enabled():
            return
        if os.getpid() != self._process or (self._needs_blocks and not blocks_of(module)):
            return
        self._seen.update(module.modules())
        model = module.module if isinstance(module, DistributedDataParallel) else module
        if any(parameter.requires_grad for parameter in model.parameters()) and any(model.children()):
            self.trained.append(self._take(model, running=model is module))

    def _take(self, model: nn.Module, *, running: bool) -> Trained:
        problems: list[str] = []
        surgery = watching = None
        wanted = is_asked(model) if self._options.wrap is None else self._options.wrap
        if wanted and not has_surgery(model):
            surgery = self._tried(problems, partial(self._change, model, running=running))
        elif wanted and self._options.operation is not None:
            problems.append("the script has wrapped it, and it was left as it is")
            self._say(f"{type(model).__name__}: {problems[-1]}")
        if surgery is not None or has_surgery(model) or is_asked(model) or self._options.wrap is not None:
            watching = self._tried(problems, partial(Guard, model, self._options.guard_options))
        if watching is not None:
            watching.begin_within()
        return Trained(model, watching, surgery, tuple(problems))

    def _change(self, model: nn.Module, *, running: bool) -> Undoable:
        if self._options.operation is not None:
            return self._options.operation(model, running=running)
        return wrap_blocks(model, **{**own_options(model), **self._options.wrap_options})

    def _tried(self, problems: list[str], action: Callable[[], Any]) -> Any:
        try:
            return action()
        except CkptSurgeryError as error:
            problems.append(str(error))
            self._say(str(error))
            return None


def own_options(model: nn.Module) -> dict[str, Any]:
    """Return the options for `wrap_blocks` with which a script has switched checkpointing on."""
    functions = [function for module in model.modules() if (function := vars(module).get(FUNCTION))]
    for function in functions:
        given = options_of(function) or options_of(inspect.unwrap(function))  # a function around torch's has its own
        if given is not None:
            options, offload = given
            own = {name: options[name] for name in ("use_reentrant", "preserve_rng_state") if name in options}
            return own | ({"offload": offload} if offload else {})
    return {}


def is_asked(model: nn.Module) -> bool:
    """Tell whether checkpointing is switched on anywhere in a model, as its library does that."""
    return any(getattr(module, flag) for module in model.modules() for flag in flags_of(module))
