"""The models that a process trains: found at their first forward, wrapped where asked for, and guarded.

One hook of torch's on every module, or hooks on the modules of one, find them. They look at each module once.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import RLock
from traceback import walk_stack
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel

from ckpt_surgery.errors import CkptSurgeryError
from ckpt_surgery.guarding.asked_options import is_asked, wrap_as_asked
from ckpt_surgery.guarding.guard import Guard, GuardOptions
from ckpt_surgery.guarding.report import GuardReport
from ckpt_surgery.guarding.steps import in_backward
from ckpt_surgery.guarding.torch_errors import explain
from ckpt_surgery.measure.model_hook import ModelHook
from ckpt_surgery.measure.own_checkpoints import checkpoint_call, is_composable, recomputing_call
from ckpt_surgery.measure.switch import blocks_of, has_surgery
from ckpt_surgery.model_patches.release_names import FUNCTION
from ckpt_surgery.runtime.blocks.discovery import is_layer
from ckpt_surgery.runtime.blocks.library_switch import (
    checkpoints_in_evaluation,
    flags_of,
    has_inline_branch,
)
from ckpt_surgery.runtime.surgery.surgery import Surgery, surgeries_in
from ckpt_surgery.runtime.surgery.wrap import can_wrap
from ckpt_surgery.runtime.tools.containers import tensors
from ckpt_surgery.text import error_line
from ckpt_surgery.torch_names import COMPOSABLE_CHECKPOINT, MODULE_CALL
from ckpt_surgery.undo import Undoable, UndoableHooks

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
    of the call that did, where that is known. With `evaluating` it was trained in evaluation mode alone, and `asked`
    tells whether checkpointing was switched on then. With `calls_checkpoint` its code calls something that
    checkpoints, perhaps functions in which no module runs. With `can_be_wrapped` it has blocks that --wrap would
    checkpoint.
    """

    def __init__(self, model: nn.Module) -> None:
        self.name = type(model).__name__
        self.problems: list[str] = []
        self.checkpoints_itself = False
        self.place = ""
        self.evaluating = self.asked = False
        self.can_be_wrapped = self.calls_checkpoint = False
        self._report: GuardReport | None = None
        self._table = ""
        self._has_table = self.is_refused = False
        self._guard: Callable[[], Guard | None] = lambda: None
        self._surgery: Callable[[], Undoable | None] = lambda: None

    def follow(self, guard: Guard | None, surgery: Undoable | None) -> None:
        """Take note of what was done to it."""
        self._table = "" if surgery is None else str(surgery)
        self._surgery = (lambda: surgery) if guard is None or surgery is None else ref(surgery)
        if guard is not None:  # it holds the surgery, and both go when the model goes
            self._guard = ref(guard)
            guard.at_check, guard.at_end = self._take_table, partial(self._keep, surgery)

    @property
    def guard(self) -> Guard | None:
        """Its guard; None where it could have none, or the model is gone."""
        return self._guard()

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
        """The table of its surgery in the last checked step; empty where it got none, or it was taken off."""
        if self.is_refused:
            return ""
        return self._table if self.surgery is None or self._has_table else str(self.surgery)

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
        elif self.calls_checkpoint and not self.report:
            said.append(f"{self.name}: no module of it was recomputed; functions that it checkpoints are not watched")
        elif not (said or self.table or self.report):
            advice = ": --wrap checkpoints it" if self.can_be_wrapped else ""
            said.append(f"{self.name} trained without checkpointing{advice}")
        return said

    def release(self) -> None:
        """Take its guard and its surgery off. Raises CkptSurgeryError where the script has taken the model apart."""
        for change in (self._guard(), self.surgery):
            if change is not None:
                change.__exit__(None, None, None)

    def _take_table(self) -> None:
        """Take the table of a step: the script may go to evaluation mode after the last one."""
        if self.surgery is not None:
            self._table, self._has_table = str(self.surgery), True

    def _keep(self, surgery: Undoable | None, watching: Guard) -> None:
        self._report = watching.report()
        if not self._has_table:
            self._table = "" if surgery is None else str(surgery)


class Takeover:
    """Wraps and guards the models of this process, from `install` to `remove`. `say` is told what cannot be done.

    After `looking.undo()` no more models are found; those that were stay wrapped and guarded.
    """

    def __init__(self, options: TakeoverOptions, say: Callable[[str], None]) -> None:
        self.trained: list[Trained] = []
        self._options = options
        self._tell = say
        self._told: set[str] = set()
        self._process = os.getpid()
        self._seen: WeakSet[nn.Module] = WeakSet()
        self._taken: WeakSet[nn.Module] = WeakSet()
        """The models that are wrapped or guarded."""
        self._waiting: WeakKeyDictionary[nn.Module, _Waiting] = WeakKeyDictionary()
        """The modules of the models on which nobody has switched checkpointing on so far."""
        self._lock = RLock()
        self.looking = UndoableHooks()
        self._needs_blocks = False

    @property
    def settled(self) -> bool:
        """Whether nothing more is expected of the models that were found."""
        return all(waiting.forwards >= _LOOKS for waiting in self._waiting.values())

    def install(self) -> None:
        """Look at every module that runs from now on."""
        warnings.filterwarnings("ignore", "Using `torch.compile", UserWarning)  # torch's, of hooks like these
        hooks = [register_module_forward_pre_hook(self._look), register_module_forward_hook(self._look_behind)]
        self.looking = UndoableHooks(hooks)

    def install_on(self, model: nn.Module) -> None:
        """Look at the modules of this one alone: what a training calls need not be the model."""
        self._needs_blocks = True
        look, behind = ModelHook(self._look), ModelHook(self._look_behind)
        modules = list(model.modules())
        hooks = [module.register_forward_pre_hook(look) for module in modules]
        self.looking = UndoableHooks([*hooks, *(module.register_forward_hook(behind) for module in modules)])

    def take(self, model: nn.Module) -> Trained:
        """Wrap this model, where that is asked for, and guard it, before its first step."""
        trained = Trained(model)
        self.trained.append(trained)
        self._take(model, trained, self._options.guard_options, running=False)
        return trained

    def remove(self) -> None:
        """Look no more, and take guards and surgeries off."""
        self.looking.undo()
        for trained in self.trained:
            self._tried([], trained.release)

    def explain(self, error: BaseException) -> None:
        """Add a note to an error that ends the training, where it is one of torch that is known here."""
        with suppress(Exception):
            guards = [guard for trained in self.trained if (guard := trained.guard) is not None]
            explain(error, [guard.watched() for guard in guards])

    def _say(self, message: str) -> None:
        """Say it, once for equal models."""
        if message not in self._told:
            self._told.add(message)
            self._tell(message)

    def _look(self, module: nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling():  # first of all: the compiler reads no further then
            return
        if module not in self._seen:
            self._safely(self._find, module)
        elif self._waiting and module in self._waiting:
            self._safely(self._look_again, module)

    def _look_behind(self, module: nn.Module, _: Any, output: Any) -> None:
        if not torch.compiler.is_compiling() and self._waiting and module in self._waiting:
            self._safely(self._await_backward, module, output)

    def _safely(self, action: Callable[..., None], *arguments: Any) -> None:
        """Do it; the training goes on whatever comes of that."""
        try:
            with self._lock:  # models may run in several threads
                action(*arguments)
        except Exception as error:
            self.looking.undo()
            self._say(f"no more models are looked for, as that failed: {error_line(error)}")

    def _find(self, module: nn.Module) -> None:
        """Look at a module that runs for the first time: a model, if it is no part of one that runs."""
        if not torch.is_grad_enabled() or in_backward():
            return
        if os.getpid() != self._process or (self._needs_blocks and not blocks_of(module)):
            return
        parts = list(module.modules())
        self._seen.update(parts)
        for outer in running_modules():  # what is compiled runs through a module that is no part of its model
            if outer is not module and outer in self._seen and not set(parts).isdisjoint(outer.modules()):
                if outer in self._waiting:
                    self._waiting.update(dict.fromkeys(parts, self._waiting[outer]))
                    self._look_again(module)
                return
        model = module.module if isinstance(module, DistributedDataParallel) else module
        parameters = nn.Module.parameters(model)  # others may take arguments
        if any(parameter.requires_grad for parameter in parameters) and any(model.children()):
            if not self._taken.isdisjoint(parts) and self._holds_no_more(model):
                return
            inside = {self._waiting[part].trained for part in parts if part in self._waiting}
            bare = {part for part in parts if part in self._taken and not blocks_of(part)}  # as what reparametrizes
            for trained in self.trained:
                if (watching := trained.guard) is not None and watching.model in bare:
                    watching.remove()
                    inside.add(trained)
            self.trained = [trained for trained in self.trained if trained not in inside]
            waiting = _Waiting(model, Trained(model))
            self._waiting.update(dict.fromkeys(model.modules(), waiting))
            if waiting.is_in_mode(model):
                self._decide(model, waiting, running=model is module)

    def _holds_no_more(self, model: nn.Module) -> bool:
        """Tell whether all blocks of a model lie in those that were taken before it: it is but around them."""
        inside = {part for whole in self._taken for part in whole.modules()}
        return all(block.module in inside for block in blocks_of(model).values())

    def _decide(self, model: nn.Module, waiting: _Waiting, *, running: bool) -> None:
        """Take a model that trains, or go on waiting for somebody to switch its checkpointing on."""
        trained = waiting.trained
        wanted = self._options.wrap is not None or waiting.asks() or has_surgery(model)
        if wanted or trained.checkpoints_itself:
            for part in [part for part, its in self._waiting.items() if its is waiting]:
                del self._waiting[part]
            self._note(trained, model, evaluating=False)
            self._take(model, trained, self._options.guard_options, running=running)
            if wanted and not (is_asked(model) or has_surgery(model)):
                self._look_for_own_call(trained, model, lambda: None)
            if trained.guard is not None:
                trained.guard.begin_within()

    def _note(self, trained: Trained, model: nn.Module | None, *, evaluating: bool) -> None:
        if trained not in self.trained:
            self.trained.append(trained)
            trained.evaluating = evaluating
            trained.can_be_wrapped = model is not None and can_wrap(model)
        trained.evaluating &= evaluating

    def _await_backward(self, module: nn.Module, output: Any) -> None:
        """Note a model that waits once a backward reaches what it returned, or where nothing can be seen of that."""
        waiting = self._waiting[module]
        if waiting.model() is not module or in_backward() or not torch.is_grad_enabled():
            return
        results = list(tensors(output))
        if not results and module.training:
            self._note(waiting.trained, module, evaluating=False)
        for tensor in results:
            if tensor.requires_grad:
                reached = partial(self._reached, waiting, not module.training)
                tensor.register_hook(reached)  # type: ignore[no-untyped-call]

    def _reached(self, waiting: _Waiting, evaluating: bool, _: Any) -> None:
        self._note(waiting.trained, waiting.model(), evaluating=evaluating)
        if evaluating:
            waiting.trained.asked |= waiting.asks()

    def _look_again(self, module: nn.Module) -> None:
        """Look at a part of a model that waits: it is switched on later, or checkpoints by itself."""
        waiting = self._waiting[module]
        if in_backward():
            if module is not waiting.model() and torch.is_grad_enabled():
                waiting.enter_again()
        elif module is not waiting.model():
            waiting.enter()
        else:
            waiting.forwards += 1
            if waiting.is_in_mode(module) and torch.is_grad_enabled():
                self._decide(module, waiting, running=True)

    def _take(self, model: nn.Module, trained: Trained, options: GuardOptions, *, running: bool) -> None:
        self._taken.add(model)
        surgery = watching = None
        wanted = is_asked(model) if self._options.wrap is None else self._options.wrap
        if wanted and not has_surgery(model):
            surgery = self._tried(trained.problems, partial(self._change, model, running=running))
            if surgery is not None and options.on_fault != "raise":
                for change in surgeries_in(model):
                    change.refusals.tell = partial(self._refused, trained, ref(change))
                    self._look_for_own_call(trained, change.model, partial(self._leave, trained, change))
        elif wanted and self._options.operation is not None:
            trained.problems.append("the script has wrapped it, and it was left as it is")
            self._say(f"{trained.name}: {trained.problems[-1]}")
        watching = self._tried(trained.problems, partial(Guard, model, options, self._say))
        trained.follow(watching, surgery)

    def _refused(self, trained: Trained, surgery: ref[Surgery], error: Exception) -> None:
        """Give a model back to the script's own checkpointing as its next forward begins."""
        trained.is_refused = True
        trained.problems.append(f"{_said(error)}; since then it trains as the script has it")
        self._say(f"{trained.name}: {trained.problems[-1]}")
        if (change := surgery()) is not None:
            self._give_back(trained, change)

    def _look_for_own_call(self, trained: Trained, model: nn.Module, found: Callable[[], None]) -> None:
        """Look whether the script checkpoints around the blocks of a model or in them, in the forward that runs."""

        def look(*_: Any) -> None:
            if not (hooks.undone or in_backward()) and (place := checkpoint_call()):
                hooks.undo()
                trained.place, trained.checkpoints_itself = place, True
                found()

        modules = {module for block in blocks_of(model).values() for module in block.module.modules()}
        handles = [module.register_forward_pre_hook(ModelHook(look)) for module in modules]
        handles.append(model.register_forward_hook(ModelHook(lambda *_: hooks.undo())))
        hooks = UndoableHooks(handles)

    def _leave(self, trained: Trained, change: Surgery) -> None:
        """Hand a model back that the script checkpoints by itself, in the forward that runs."""
        trained.is_refused = True
        self._say(f"{trained.name} checkpoints by itself at {trained.place}: it is left as it is")
        for block in blocks_of(change.model).values():
            vars(block.module)[FUNCTION] = None  # the others of this forward run plainly inside of the script's call
        self._give_back(trained, change)

    def _give_back(self, trained: Trained, change: Surgery) -> None:
        def give_back(*_: Any) -> None:
            if not in_backward() and not change.undone:
                self._tried(trained.problems, change.undo)
                handle.remove()

        handle = change.model.register_forward_pre_hook(ModelHook(give_back), prepend=True)

    def _change(self, model: nn.Module, *, running: bool) -> Undoable:
        if self._options.operation is not None:
            return self._options.operation(model, running=running)
        return wrap_as_asked(model, **self._options.wrap_options)

    def _tried(self, problems: list[str], action: Callable[[], Any]) -> Any:
        try:
            return action()
        except Exception as error:
            problems.append(_said(error))
            self._say(_said(error))
            return None


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, CkptSurgeryError) else error_line(error)


class _Waiting:
    """A model on which nobody has switched checkpointing on. `forwards` counts those after its first."""

    def __init__(self, model: nn.Module, trained: Trained) -> None:
        self.model = ref(model)
        self.trained = trained
        self.forwards = 0
        parts = list(model.modules())
        self._flags = [(ref(module), flag) for module in parts for flag in flags_of(module)]
        self._in_evaluation = any(map(checkpoints_in_evaluation, parts))
        trained.calls_checkpoint = any(
            has_inline_branch(module) and not (is_layer(module) or flags_of(module)) for module in parts
        )

    def is_in_mode(self, model: nn.Module) -> bool:
        """Tell whether a model is in a mode in which something may checkpoint it."""
        return model.training or self._in_evaluation or self.trained.checkpoints_itself

    def asks(self) -> bool:
        """Tell whether that was done since."""
        return any(getattr(module(), flag, False) for module, flag in self._flags)

    def enter(self) -> None:
        """Look whether torch's checkpoint function runs what begins now, as long as little was seen."""
        if self.forwards < _LOOKS and not self.trained.place:
            self.trained.place = checkpoint_call()
            self.trained.checkpoints_itself |= bool(self.trained.place)

    def enter_again(self) -> None:
        """Look who runs what begins now in the backward, where nobody was seen to checkpoint in the forward."""
        trained, model = self.trained, self.model()
        trained.checkpoints_itself = True
        if not trained.place and model is not None:
            composable = any(map(is_composable, model.modules()))
            trained.place = COMPOSABLE_CHECKPOINT if composable else recomputing_call()


def running_modules() -> Iterator[nn.Module]:
    """Iterate over the modules whose calls run, the innermost first."""
    for frame, _ in walk_stack(inspect.currentframe()):
        if frame.f_code is MODULE_CALL:
            yield frame.f_locals["self"]
