"""Follow each training step of a model from its forward to the end of its backward. Only the model gets hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from ckpt_surgery.measure.model_hook import HookErrors, ModelHook
from ckpt_surgery.runtime.tools.containers import tensors
from ckpt_surgery.torch_names import current_graph_task_id, engine, transform_stack
from ckpt_surgery.undo import UndoableHooks


class WatchedPhase(Enum):
    """The parts of a step: its forward, a forward in between that is not part of it, or its backward."""

    FORWARD = "forward"
    ASIDE = "aside"
    BACKWARD = "backward"


class StepWatch(UndoableHooks):
    """Base class of watches on one step through hooks on the model, until `undo`; `phase` is the running part."""

    phase = WatchedPhase.FORWARD

    def enter(self, phase: WatchedPhase) -> None:
        """Note what runs from now on."""
        self.phase = phase

    def note_results(self, nodes: Sequence[Node]) -> None:
        """Note where the graph of the model's results begins."""


class StepHooks(UndoableHooks):
    """Calls `begin` before each forward with gradients, and `end` after its backward, with the watch `begin` returned.

    The watch is told as each part of the step begins.

    If the next forward begins before the backward of one, that one is given up and its watch undone. Once a backward
    has reached several forwards, none is given up: the loss is made of several outputs, and a step begins with the
    first of them. A forward in between without gradients, such as that of a reference model, is set aside, and so is
    one in evaluation mode after one in training mode. A step whose backward raised is given up as the next begins.

    `follows_forward` tells whether the current step comes after a forward without a backward of its own, whose graph
    may be part of the step's, for example through a cache. `evaluating` tells whether the step began in evaluation
    mode. Errors in these hooks, and in those that a watch puts on the model, go to `errors`.
    """

    def __init__(
        self, model: nn.Module, begin: Callable[[], StepWatch], end: Callable[[StepWatch], None], errors: HookErrors
    ) -> None:
        super().__init__()
        self._handles += [
            model.register_forward_pre_hook(ModelHook(self.before, errors), prepend=True),
            model.register_forward_hook(ModelHook(self._after, errors), always_call=True),
        ]
        self._begin, self._end = begin, end
        self._watch = StepWatch()
        self.follows_forward = self.evaluating = False
        self._running = self._in_backward = self._several_forwards = False
        self._first = self._forwards = 0  # the number of the step's first forward, and of all so far
        self._training: list[bool] = []

    def undo(self) -> None:
        """Remove the hooks, and abandon a step that has begun."""
        super().undo()
        if self._running:
            self._give_up()

    def before(self, model: nn.Module, _: Any = None) -> None:
        """Note that a forward begins, or began before the hooks were there."""
        if self._in_backward and not in_backward():
            self._give_up()
        if self._in_backward or torch.compiler.is_compiling():
            return
        in_mode = model.training or self.evaluating or not self._running
        training = in_mode and torch.is_grad_enabled() and not transform_stack()
        self._training.append(training)
        if training:
            self._begin_forward(evaluating=not model.training)
        elif self._running:
            self._watch.enter(WatchedPhase.ASIDE)

    def _begin_forward(self, *, evaluating: bool) -> None:
        self._forwards += 1
        if self._running and self._several_forwards:
            return
        if self._running:
            self.follows_forward |= evaluating or not self.evaluating
            self._give_up()
        self.evaluating = evaluating
        self._first = self._forwards
        self._watch = self._begin()
        self._running = True

    def _after(self, model: nn.Module, _: Any, output: Any) -> None:
        if self._in_backward or torch.compiler.is_compiling() or not self._training:
            return
        training = self._training.pop()
        if not self._running:
            return
        if not training:
            self._watch.enter(WatchedPhase.FORWARD)
            return
        results = [tensor for tensor in tensors(output) if tensor.requires_grad]
        if not results:
            self._give_up()
        self._watch.note_results([get_gradient_edge(tensor).node for tensor in results])
        for tensor in results:
            reached = ModelHook(partial(self._reached, self._forwards))
            tensor.register_hook(reached)  # type: ignore[no-untyped-call]

    def _reached(self, forward: int, _: Tensor) -> None:
        if not self._running:
            return
        if forward < self._first:
            self._several_forwards = True
            self._give_up()
        elif not self._in_backward:
            self._in_backward = True
            self._watch.enter(WatchedPhase.BACKWARD)
            # after what others queue in this backward, such as FSDP2, which reduces gradients at its end
            engine.queue_callback(partial(engine.queue_callback, ModelHook(self._finish)))

    def _finish(self) -> None:
        running, self._running, self._in_backward = self._running, False, False
        watch, self._watch = self._watch, StepWatch()
        if running:
            with watch:  # its hooks go in any case
                self._end(watch)
        self.follows_forward = False

    def _give_up(self) -> None:
        self._running = self._in_backward = False
        watch, self._watch = self._watch, StepWatch()
        watch.undo()


class SecondRun(StepWatch):
    """A watch for a second run of `model` in the backward, as by a loss that embeds again in a hook.

    Forwards and recomputes cannot be told apart then. It is `seen` if a block runs before the backward has reached the
    model's results, or a part of the model that holds blocks after that.
    """

    def __init__(self, model: nn.Module, blocks: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.seen = False
        parts = [model.get_submodule(name) for name in {name.partition(".")[0] for name in blocks if "." in name}]
        for modules, enter in ((blocks.values(), self._enter_block), (parts, self._enter_part)):
            self._handles += [module.register_forward_pre_hook(ModelHook(enter)) for module in modules]

    def _enter_block(self, *_: Any) -> None:
        self.seen |= self.phase is not WatchedPhase.BACKWARD and in_backward()

    def _enter_part(self, *_: Any) -> None:
        self.seen |= self.phase is WatchedPhase.BACKWARD


def in_backward() -> bool:
    """Tell whether autograd runs on this thread: a backward, or a hook in one."""
    return current_graph_task_id() != -1
