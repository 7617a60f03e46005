"""The training steps of a model: each begins with its forward, and ends after the backward. Hooks are on it alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.utils.hooks import RemovableHandle

from ckpt_surgery.measure.model_hook import ModelHook
from ckpt_surgery.runtime.tools.containers import tensors
from ckpt_surgery.undo import UndoableHooks

_NO_BACKWARD = -1
"""The number that torch gives in place of the number of the backward that runs, where none does."""


class WatchedPhase(Enum):
    """The parts of a step: its forward, a forward without gradients that is no part of it, or its backward."""

    FORWARD = "forward"
    ASIDE = "aside"
    BACKWARD = "backward"


class StepWatch(UndoableHooks):
    """The base of what watches one step through hooks on the model, until `undo`. `phase` is what runs."""

    phase = WatchedPhase.FORWARD

    def enter(self, phase: WatchedPhase) -> None:
        """Take note of what runs from now on."""
        self.phase = phase


class StepHooks:
    """Call `begin` before a forward that trains, `enter` as other parts of its step begin, and `end` after all.

    A forward whose backward has not begun when the next forward begins is given up, by `abandon`, until a backward has
    reached several forwards: the loss is made of several outputs then, and the step has begun with the first of them.
    A forward in between without gradients, such as that of a reference model, is set aside. A step whose backward
    raised is given up when the next forward begins.

    `follows_forward` tells whether the present step comes behind a forward without a backward of its own: its graph
    may be part of this step's, as where a cache leads from one to the other.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        begin: Callable[[], None],
        enter: Callable[[WatchedPhase], None],
        end: Callable[[], None],
        abandon: Callable[[], None],
    ) -> None:
        self._begin, self._enter, self._end, self._abandon = begin, enter, end, abandon
        self.follows_forward = False
        self._running = self._in_backward = self._several = False
        self._first = self._forwards = 0
        self._training: list[bool] = []
        self._handles: list[RemovableHandle] = [
            model.register_forward_pre_hook(ModelHook(self.before), prepend=True),
            model.register_forward_hook(ModelHook(self._after), always_call=True),
        ]

    def remove(self) -> None:
        """Take the hooks off, and give up a step that has begun."""
        for handle in self._handles:
            handle.remove()
        if self._running:
            self._give_up()

    def before(self, model: nn.Module, _: Any = None) -> None:
        """Take note that a forward begins, or has begun before the hooks were there."""
        if self._in_backward and not _in_backward():
            self._give_up()
        if self._in_backward or torch.compiler.is_compiling():
            return
        training = model.training and torch.is_grad_enabled()
        self._training.append(training)
        if training:
            self._begin_forward()
        elif self._running:
            self._enter(WatchedPhase.ASIDE)

    def _begin_forward(self) -> None:
        self._forwards += 1
        if self._running and self._several:
            return
        if self._running:
            self.follows_forward = True
            self._give_up()
        self._running = True
        self._first = self._forwards
        self._begin()

    def _after(self, model: nn.Module, _: Any, output: Any) -> None:
        if self._in_backward or torch.compiler.is_compiling() or not self._training:
            return
        training = self._training.pop()
        if not self._running:
            return
        if not training:
            self._enter(WatchedPhase.FORWARD)
            return
        results = [tensor for tensor in tensors(output) if tensor.requires_grad]
        if not results:
            self._give_up()
        for tensor in results:
            tensor.register_hook(partial(self._reached, self._forwards))  # type: ignore[no-untyped-call]

    def _reached(self, forward: int, _: Tensor) -> None:
        if not self._running:
            return
        if forward < self._first:
            self._several = True
            self._give_up()
        elif not self._in_backward:
            self._in_backward = True
            self._enter(WatchedPhase.BACKWARD)
            Variable._execution_engine.queue_callback(self._finish)

    def _finish(self) -> None:
        running, self._running, self._in_backward = self._running, False, False
        if running:
            self._end()
        self.follows_forward = False

    def _give_up(self) -> None:
        self._running = self._in_backward = False
        self._abandon()


class SecondRun(StepWatch):
    """Watch whether `model` is `seen` to run again in the backward, as under a loss that embeds again in a hook.

    Forwards and recomputes cannot be told apart then. A block runs before the backward has reached the model's
    results, or a part of the model that holds blocks runs after that.
    """

    def __init__(self, model: nn.Module, blocks: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.seen = False
        parts = [model.get_submodule(name) for name in {name.partition(".")[0] for name in blocks if "." in name}]
        for modules, enter in ((blocks.values(), self._enter_block), (parts, self._enter_part)):
            self._handles += [module.register_forward_pre_hook(ModelHook(enter)) for module in modules]

    def _enter_block(self, *_: Any) -> None:
        self.seen |= self.phase is not WatchedPhase.BACKWARD and _in_backward()

    def _enter_part(self, *_: Any) -> None:
        self.seen |= self.phase is WatchedPhase.BACKWARD


def _in_backward() -> bool:
    """Tell whether autograd runs on this thread: a backward, or what a hook does in one."""
    return torch._C._current_graph_task_id() != _NO_BACKWARD
