"""Find the models that a process trains at their first forward, guard them, and wrap them on request.

A global module hook of torch, or hooks on the modules of one model, find them. They look at each module once.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel

from ckpt_surgery.errors import CkptSurgeryError
from ckpt_surgery.guarding.asked_options import is_asked, wrap_as_asked
from ckpt_surgery.guarding.failed_step import FailedPart, FailedStep, LastCall
from ckpt_surgery.guarding.guard import Guard, GuardOptions
from ckpt_surgery.guarding.run_through import RunThrough
from ckpt_surgery.guarding.steps import in_backward
from ckpt_surgery.guarding.switch_calls import SwitchCalls
from ckpt_surgery.guarding.torch_errors import explain
from ckpt_surgery.guarding.trained_model import LOOKS, Trained, WaitingModel
from ckpt_surgery.measure.model_hook import ModelHook
from ckpt_surgery.measure.own_checkpoints import checkpoint_call, running_modules
from ckpt_surgery.measure.surgical_blocks import blocks_of, has_surgery
from ckpt_surgery.model_patches.release_names import FUNCTION
from ckpt_surgery.runtime.surgery.surgery import Surgery, surgeries_in
from ckpt_surgery.runtime.surgery.wrap import can_wrap
from ckpt_surgery.runtime.tools.containers import tensors
from ckpt_surgery.text import error_line
from ckpt_surgery.torch_names import FakeTensor
from ckpt_surgery.undo import Undoable, UndoableHooks

Operation = Callable[..., Undoable]
"""What is done to a model instead of `wrap_blocks`; its keyword `running` tells whether a forward has begun."""


@dataclass(frozen=True, slots=True)
class TakeoverOptions:
    """The options of a takeover: `wrap_options` go to `wrap_blocks`, unless an `operation` takes its place.

    With `wrap` None, only models on which the script has switched checkpointing on are wrapped.
    """

    wrap: bool | None = None
    wrap_options: Mapping[str, Any] = field(default_factory=dict)
    operation: Operation | None = None
    guard_options: GuardOptions = field(default_factory=partial(GuardOptions, on_fault="collect"))


class Takeover:
    """Wraps and guards the models of this process, from `install` to `remove`; `say` reports what cannot be done.

    After `search.undo()` no more models are found; those that were stay wrapped and guarded. Once `explain` was given
    the error that ended the training, `failed` is the step that ran out of memory, and `proving` the block whose proof
    was under way then; `explained` is the note to an error of any other kind.
    """

    def __init__(self, options: TakeoverOptions, say: Callable[[str], None]) -> None:
        self.trained: list[Trained] = []
        self._options = options
        self._tell = say
        self._reported: set[str] = set()
        self._process = os.getpid()
        self._seen: WeakSet[nn.Module] = WeakSet()
        self._handled: WeakSet[nn.Module] = WeakSet()
        """The models that are wrapped or guarded."""
        self._waiting: WeakKeyDictionary[nn.Module, WaitingModel] = WeakKeyDictionary()
        """The modules of the models on which nobody has switched checkpointing on so far."""
        self._lock = RLock()
        self.search = UndoableHooks()
        self.switches = SwitchCalls()
        self.run_through = RunThrough()
        self._needs_blocks = False
        self._expected: WeakSet[nn.Module] = WeakSet()
        """The blocks that train inside the module that is looked at, if that is known."""
        self._calls: dict[int, LastCall] = {}  # by the ids of models
        self._forwards_ended = 0
        self.failed: FailedStep | None = None
        self.proving = self.explained = ""

    @property
    def caught(self) -> int:
        """The number of times that memory ran out, as far as that was seen, and the script went on."""
        ended = self.failed is not None
        in_forward = self._forwards_ended - (self.failed is not None and self.failed.part is FailedPart.FORWARD)
        devices = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
        counted = sum(int(torch.cuda.memory_stats(device).get("num_ooms", 0)) for device in devices)
        return max(in_forward, counted - ended, 0)

    @property
    def settled(self) -> bool:
        """Whether models were found, and no more are expected, nor anything more from these."""
        found = bool(self._calls) and self._expected <= self._seen
        return found and all(waiting.forwards >= LOOKS for waiting in self._waiting.values())

    def install(self) -> None:
        """Look at every module that runs from now on."""
        warnings.filterwarnings("ignore", "Using `torch.compile", UserWarning)  # torch's, of hooks like these
        if self._options.wrap:
            self.run_through.begin()
        after = register_module_forward_hook(self._look_after, with_kwargs=True, always_call=True)
        self.search = UndoableHooks([register_module_forward_pre_hook(self._look), after])

    def install_within(self, model: nn.Module) -> None:
        """Look only at the modules of this one: a training may call parts of it instead of the whole."""
        self._needs_blocks = True
        look, after = ModelHook(self._look), ModelHook(self._look_after)
        modules = list(model.modules())
        blocks = [block.module for block in blocks_of(model).values()]
        self._expected.update(each for each in blocks if any(p.requires_grad for p in nn.Module.parameters(each)))
        hooks = [module.register_forward_pre_hook(look) for module in modules]
        hooks += [module.register_forward_hook(after, with_kwargs=True) for module in modules]
        self.search = UndoableHooks(hooks)

    def wrap_and_guard(self, model: nn.Module) -> Trained:
        """Guard this model before its first step, and wrap it first if asked for."""
        trained = Trained(model)
        self.trained.append(trained)
        self._wrap_and_guard(model, trained, running=False)
        return trained

    def remove(self) -> None:
        """Stop looking, and remove guards and surgeries."""
        self.search.undo()
        self.switches.undo()
        self.run_through.undo()
        for trained in self.trained:
            self._tried([], trained.release)

    def explain(self, error: BaseException) -> None:
        """Add a note to an error that ends the training, if it is a known one; record how memory ran out."""
        try:
            self.failed = FailedStep.of(error, self._calls.values())
        except Exception as own:
            self._say(f"what was alive as memory ran out is not known: {error_line(own)}")
        with suppress(Exception):
            guards = [guard for trained in self.trained if (guard := trained.guard) is not None]
            self.proving = next((name for guard in guards if self.failed and (name := guard.proving)), "")
            self.explained = explain(error, [guard.watched() for guard in guards])

    def _say(self, message: str) -> None:
        """Report a message, unless it was reported before, as for another model of the class."""
        if message not in self._reported:
            self._reported.add(message)
            self._tell(message)

    def _look(self, module: nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling():  # first of all: the compiler reads no further then
            return
        if module not in self._seen:
            self._safely(self._find, module)
        elif self._waiting and module in self._waiting:
            self._safely(self._look_again, module)

    def _look_after(self, module: nn.Module, args: Any, *result: Any) -> None:
        """Look at a call that is ending; one that ends with an error has no keyword arguments here."""
        if torch.compiler.is_compiling():
            return
        if id(module) in self._calls:
            self._safely(self._note_call, module, args, *result)
        if self._waiting and len(result) > 1 and module in self._waiting:
            self._safely(self._await_backward, module, result[-1])

    def _note_call(self, module: nn.Module, args: Any, *result: Any) -> None:
        call = self._calls[id(module)]
        if call.model() is not module:
            del self._calls[id(module)]
        elif len(result) > 1:
            call.note(args, result[0])
        elif isinstance(sys.exc_info()[1], torch.OutOfMemoryError):
            others = [each for each in running_modules() if each is not module]
            self._forwards_ended += not any(id(each) in self._calls for each in others)

    def _safely(self, action: Callable[..., None], *arguments: Any) -> None:
        """Run an action; if it fails, stop the search, and let the training go on."""
        try:
            with self._lock:  # models may run in several threads
                action(*arguments)
        except Exception as error:
            self.search.undo()
            self._say(f"no more models are looked for, as that failed: {error_line(error)}")

    def _find(self, module: nn.Module) -> None:
        """Look at a module that runs for the first time: it is a model unless it is part of a running one."""
        if not torch.is_grad_enabled() or in_backward():
            return
        if os.getpid() != self._process or (self._needs_blocks and not blocks_of(module)):
            return
        parts = list(module.modules())
        self._seen.update(parts)
        for outer in running_modules():  # a compiled model runs inside a module that is not part of it
            if outer is not module and outer in self._seen and not set(parts).isdisjoint(outer.modules()):
                if outer in self._waiting:
                    self._waiting.update(dict.fromkeys(parts, self._waiting[outer]))
                    self._look_again(module)
                return
        model = module.module if isinstance(module, DistributedDataParallel) else module
        parameters = list(nn.Module.parameters(model))  # an override may take arguments
        on_shapes = any(isinstance(each, FakeTensor) for each in parameters)
        trains = not on_shapes and any(each.requires_grad for each in parameters)
        if trains and any(model.children()):
            if not self._handled.isdisjoint(parts) and self._holds_no_more(model):
                return
            inside = {self._waiting[part].trained for part in parts if part in self._waiting}
            bare = {part for part in parts if part in self._handled and not blocks_of(part)}  # as parametrizations
            for trained in self.trained:
                if (watching := trained.guard) is not None and watching.model in bare:
                    watching.remove()
                    inside.add(trained)
            self.trained = [trained for trained in self.trained if trained not in inside]
            self._calls[id(model)] = call = LastCall(model)
            call.note_autocast(model)
            waiting = WaitingModel(model, Trained(model))
            self._waiting.update(dict.fromkeys(model.modules(), waiting))
            if waiting.is_in_mode(model):
                self._decide(model, waiting, running=model is module)

    def _holds_no_more(self, model: nn.Module) -> bool:
        """Tell whether all blocks of a model lie in models handled before, around which it is only a wrapper."""
        inside = {part for whole in self._handled for part in whole.modules()}
        return all(block.module in inside for block in blocks_of(model).values())

    def _decide(self, model: nn.Module, waiting: WaitingModel, *, running: bool) -> None:
        """Wrap and guard a model that trains, or keep waiting until its checkpointing is switched on."""
        trained = waiting.trained
        wanted = self._options.wrap is not None or waiting.is_switched_on() or has_surgery(model)
        if wanted or trained.checkpoints_itself:
            for part in [part for part, its in self._waiting.items() if its is waiting]:
                del self._waiting[part]
            self._note(trained, model, evaluating=False)
            self._wrap_and_guard(model, trained, running=running)
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
        """Note a waiting model once a backward reaches its results, or at once if they hold no tensors."""
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

    def _reached(self, waiting: WaitingModel, evaluating: bool, _: Any) -> None:
        self._note(waiting.trained, waiting.model(), evaluating=evaluating)
        if evaluating:
            waiting.trained.asked |= waiting.is_switched_on()

    def _look_again(self, module: nn.Module) -> None:
        """Look again at a waiting model: it may have been switched on since, or have checkpointed by itself."""
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

    def _wrap_and_guard(self, model: nn.Module, trained: Trained, *, running: bool) -> None:
        options = self._options.guard_options
        self._handled.add(model)
        trained.overrides = self.switches.of(model)
        surgery = watching = None
        wanted = is_asked(model) if self._options.wrap is None else self._options.wrap
        if wanted and not has_surgery(model):
            surgery = self._tried(trained.problems, partial(self._change, model, running=running))
            if surgery is not None and options.on_fault != "raise":
                for change in surgeries_in(model):
                    change.error_policy.report = partial(self._refused, trained, ref(change))
                    self._look_for_own_call(trained, change.model, partial(self._leave_to_script, trained, change))
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
        """Look for a checkpoint call of the script around or inside the model's blocks in the running forward."""

        def look(*_: Any) -> None:
            if hooks.undone or in_backward():
                return
            if place := checkpoint_call(but_for=self.run_through.takes):
                hooks.undo()
                trained.place, trained.checkpoints_itself = place, True
                trained.replaced = ""
                found()
            else:
                trained.replaced = trained.replaced or checkpoint_call()

        modules = {module for block in blocks_of(model).values() for module in block.module.modules()}
        handles = [module.register_forward_pre_hook(ModelHook(look)) for module in modules]
        handles.append(model.register_forward_hook(ModelHook(lambda *_: hooks.undo())))
        hooks = UndoableHooks(handles)

    def _leave_to_script(self, trained: Trained, change: Surgery) -> None:
        """Give back, in the running forward, a model that the script checkpoints by itself."""
        trained.is_refused = True
        self._say(f"{trained.name} checkpoints by itself at {trained.place}: it is left as it is")
        for block in blocks_of(change.model).values():
            vars(block.module)[FUNCTION] = None  # the rest of this forward runs plainly inside the script's own calls
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
