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
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from ckpt_surgery.errors import CkptSurgeryError, SurgeryError
from ckpt_surgery.guarding.guard import Guard, GuardOptions
from ckpt_surgery.guarding.report import GuardReport
from ckpt_surgery.guarding.steps import in_backward
from ckpt_surgery.measure.model_hook import ModelHook
from ckpt_surgery.measure.switch import blocks_of, has_surgery
from ckpt_surgery.model_patches.release_names import FLAG, FUNCTION
from ckpt_surgery.runtime.blocks.discovery import is_layer
from ckpt_surgery.runtime.blocks.library_switch import flags_of, options_of
from ckpt_surgery.runtime.surgery.wrap import wrap_blocks
from ckpt_surgery.runtime.tools.containers import tensors
from ckpt_surgery.undo import Undoable, UndoableHooks

_TORCH = os.path.dirname(torch.__file__) + os.sep
_CHECKPOINT = checkpoint.__code__.co_filename
_LOOKS = 3
"""In so many forwards the calls of modules are looked at for who checkpoints them."""
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

    `name` is that of its class, and `problems` are what went wrong. With `checkpoints_itself`, parts of it were run
    again in a backward, and no switch of a library and nothing of this package did that; `place` is the file and line
    of the call of torch's checkpoint function that did, if one did. With `evaluating` it was trained in evaluation
    mode alone, and `asked` tells whether checkpointing was switched on then.
    """

    def __init__(self, model: nn.Module) -> None:
        self.name = type(model).__name__
        self.problems: list[str] = []
        self.checkpoints_itself = False
        self.place = ""
        self.evaluating = self.asked = False
        self._report: GuardReport | None = None
        self._table = ""
        self._guard: Callable[[], Guard | None] = lambda: None
        self._surgery: Callable[[], Undoable | None] = lambda: None

    def follow(self, guard: Guard | None, surgery: Undoable | None) -> None:
        """Take note of what was done to it."""
        self._table = "" if surgery is None else str(surgery)
        self._surgery = (lambda: surgery) if guard is None or surgery is None else ref(surgery)
        if guard is not None:  # it holds the surgery, and both go when the model goes
            self._guard = ref(guard)
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

    @property
    def said(self) -> list[str]:
        """What is to be said beside its table and report, a sentence each."""
        said = [f"{self.name}: {problem}" for problem in self.problems]
        if self.checkpoints_itself:
            where = f" at {self.place}" if self.place else ""
            watched = "" if self.report else ", and ended before it was watched"
            said.append(f"{self.name} checkpoints by itself{where}{watched}")
        elif self.evaluating:
            why = ": transformers does not checkpoint in it, so call model.train()" if self.asked else ""
            said.append(f"{self.name} trained in evaluation mode{why or ', without checkpointing'}")
        elif not (said or self.table or self.report):
            said.append(f"{self.name} trained without checkpointing: --wrap checkpoints it")
        return said

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
        self._waiting: WeakKeyDictionary[nn.Module, _Waiting] = WeakKeyDictionary()
        """The models on which nobody has switched checkpointing on so far."""
        self.looking = UndoableHooks()
        self._needs_blocks = False

    @property
    def settled(self) -> bool:
        """Whether nothing more is expected of the models that were found."""
        return all(waiting.forwards >= _LOOKS for waiting in self._waiting.values())

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
        if module in self._seen:
            if self._waiting:
                self._look_again(module)
            return
        if not torch.is_grad_enabled() or in_backward():
            return
        if os.getpid() != self._process or (self._needs_blocks and not blocks_of(module)):
            return
        self._seen.update(module.modules())
        model = module.module if isinstance(module, DistributedDataParallel) else module
        if any(parameter.requires_grad for parameter in model.parameters()) and any(model.children()):
            waiting = _Waiting(model, Trained(model))
            for inner in [inner for inner in self._waiting if inner in waiting.parts]:
                del self._waiting[inner]
            if model.training:
                self._decide(model, waiting, running=model is module)
            else:
                self._waiting[model] = waiting
                self.looking.keep(model.register_forward_hook(ModelHook(partial(self._evaluate, waiting))))

    def _decide(self, model: nn.Module, waiting: _Waiting, *, running: bool) -> None:
        """Take a model that trains, or wait for somebody to switch its checkpointing on."""
        trained = waiting.trained
        self._note(trained, evaluating=False)
        if self._options.wrap is None and not (trained.checkpoints_itself or waiting.asks() or has_surgery(model)):
            self._waiting[model] = waiting
            return
        self._waiting.pop(model, None)
        self._take(model, trained, running=running)

    def _note(self, trained: Trained, *, evaluating: bool) -> None:
        if trained not in self.trained:
            self.trained.append(trained)
            trained.evaluating = evaluating
        trained.evaluating &= evaluating

    def _evaluate(self, waiting: _Waiting, model: nn.Module, _: Any, output: Any) -> None:
        """Note a model in evaluation mode once a backward reaches what it returned."""

        def reached(_: Any) -> None:
            self._note(waiting.trained, evaluating=True)
            waiting.trained.asked |= waiting.asks()

        if not model.training:
            for tensor in tensors(output):
                if tensor.requires_grad:
                    tensor.register_hook(reached)  # type: ignore[no-untyped-call]

    def _look_again(self, module: nn.Module) -> None:
        """Look at a module that ran before: models are switched on later, and some checkpoint by themselves."""
        if in_backward():
            for model, waiting in self._waiting.items():
                if module is not model and module in waiting.parts:
                    waiting.trained.checkpoints_itself = True
            return
        if module not in self._waiting:
            for waiting in self._waiting.values():
                waiting.enter(module)
        elif module.training and torch.is_grad_enabled():
            waiting = self._waiting[module]
            waiting.forwards += 1
            self._decide(module, waiting, running=True)

    def _take(self, model: nn.Module, trained: Trained, *, running: bool) -> None:
        surgery = watching = None
        wanted = is_asked(model) if self._options.wrap is None else self._options.wrap
        if wanted and not has_surgery(model):
            surgery = self._tried(trained.problems, partial(self._change, model, running=running))
        elif wanted and self._options.operation is not None:
            trained.problems.append("the script has wrapped it, and it was left as it is")
            self._say(f"{trained.name}: {trained.problems[-1]}")
        watching = self._tried(trained.problems, partial(Guard, model, self._options.guard_options))
        if watching is not None:
            watching.begin_within()
        trained.follow(watching, surgery)

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


class _Waiting:
    """A model that trains, and on which nobody has switched checkpointing on. `forwards` counts those after its first.

    `parts` are its modules.
    """

    def __init__(self, model: nn.Module, trained: Trained) -> None:
        self.trained = trained
        self.forwards = 0
        self.parts = WeakSet(model.modules())
        self._flags = [(ref(module), flag) for module in self.parts for flag in flags_of(module)]

    def asks(self) -> bool:
        """Tell whether that was done since."""
        return any(getattr(module(), flag, False) for module, flag in self._flags)

    def enter(self, module: nn.Module) -> None:
        """Look whether torch's checkpoint function runs a module of it, as long as little was seen."""
        if self.forwards < _LOOKS and not self.trained.place and module in self.parts:
            self.trained.place = checkpoint_call()
            self.trained.checkpoints_itself |= bool(self.trained.place)


def checkpoint_call() -> str:
    """Return the file and line that has called torch's checkpoint function, in which this runs; empty outside."""
    frame, inside = inspect.currentframe(), False
    while frame is not None:
        file = frame.f_code.co_filename
        inside |= file == _CHECKPOINT
        if inside and not file.startswith(_TORCH):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def own_options(model: nn.Module) -> dict[str, Any]:
    """Return the options for `wrap_blocks` with which a script has switched checkpointing on.

    Raises SurgeryError where it has done so on some layers, and there is no option for which.
    """
    chosen = _chosen_layers(model)
    functions = [function for module in model.modules() if (function := vars(module).get(FUNCTION))]
    for function in functions:
        given = options_of(function) or options_of(inspect.unwrap(function))  # a function around torch's has its own
        if given is not None:
            options, offload = given
            own = {name: options[name] for name in ("use_reentrant", "preserve_rng_state") if name in options}
            return own | chosen | ({"offload": offload} if offload else {})
    return chosen


def _chosen_layers(model: nn.Module) -> dict[str, Any]:
    on = [bool(getattr(module, FLAG, False)) for module in model.modules() if is_layer(module)]
    if not any(on) or all(on):
        return {}
    for every_n in range(2, len(on) + 1):
        if on == [index % every_n == 0 for index in range(len(on))]:
            return {"every_n": every_n}
    raise SurgeryError(
        f"{type(model).__name__} has checkpointing on in {sum(on)} of {len(on)} layers, and not in every n-th: it was "
        "left as it is, and can be wrapped with stacks, blocks or first"
    )


def is_asked(model: nn.Module) -> bool:
    """Tell whether checkpointing is switched on anywhere in a model, as its library does that."""
    return any(getattr(module, flag) for module in model.modules() for flag in flags_of(module))
