"""Training loops: how forwards, backwards and steps follow one another, and what happens between them."""

from __future__ import annotations

import copy
import functools
import re
import sys
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from benchmarks.fuzz_cases.feature import linear, scaled
from benchmarks.fuzz_cases.training import Training
from ckpt_surgery.errors import SurgeryError

Loop = Callable[[Training], None]
"""Trains, and notes what has to be the same."""


class _Staged:
    """A loop of several stages, which keeps something from one to the next."""

    def train(self, training: Training) -> None:
        """Train, and note what has to be the same."""
        raise NotImplementedError

    @classmethod
    def loop(cls, training: Training) -> None:
        """Train with a new one."""
        cls().train(training)


# steps


def one_step(training: Training) -> None:
    """Take one step."""
    training.step()


def three_steps(training: Training) -> None:
    """Three steps with other batches."""
    for number in range(3):
        training.step(number)


def eight_steps(training: Training) -> None:
    """More steps than are watched in all blocks."""
    for number in range(8):
        training.step(number)


def accumulation(training: Training) -> None:
    """Run two backwards before a step."""
    for first in (0, 2):
        for number in (first, first + 1):
            training.backward(training.forward(number))
        training.update()


def summed_losses(training: Training) -> None:
    """Run two forwards before one backward."""
    for first in (0, 2):
        training.backward(training.forward(first) + training.forward(first + 1))
        training.update()


def backwards_in_reverse(training: Training) -> None:
    """Run two forwards, and their backwards in reverse order."""
    first, second = training.forward(0), training.forward(1)
    training.backward(second)
    training.note_gradients()
    training.backward(first)
    training.update()
    training.step(2)


def retained_graph(training: Training) -> None:
    """Run two backwards through one graph."""
    loss = training.forward()
    training.backward(loss, retain_graph=True)
    training.note_gradients()
    training.backward(loss * 2)
    training.update()


def _first(output: Any) -> torch.Tensor:
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, dict):
        return _first(next(iter(output.values())))
    return _first(output[0]) if isinstance(output, (list, tuple)) else _first(output.hidden)


def gradient_penalty(training: Training) -> None:
    """Make the gradient of the loss by the inputs part of a second loss."""
    for number in range(2):
        values = training.batch(number, requires_grad=True)
        loss = training.forward(values=values)
        (slope,) = torch.autograd.grad(loss, values, create_graph=True)
        training.note("slope", slope)
        training.backward(loss + slope.square().sum())
        training.update()


def grad_function(training: Training) -> None:
    """`torch.autograd.grad` for all parameters."""
    chosen = [p for p in training.model.parameters() if p.requires_grad]
    for number in range(2):
        gradients = torch.autograd.grad(training.forward(number), chosen, allow_unused=True)
        training.note("gradient", list(gradients))
        training.end_backward()


def forward_mode(training: Training) -> None:
    """Take a derivative along the inputs by forward-mode differentiation, and then a step."""
    values = training.batch()
    dual: Any = forward_ad
    with dual.dual_level():
        loss = training.run(dual.make_dual(values, torch.ones_like(values)))
        training.note("derivative", dual.unpack_dual(loss).tangent)
    training.step()


def in_evaluation_mode(training: Training) -> None:
    """Train in evaluation mode, and one step behind that in training mode."""
    training.model.eval()
    training.step(0)
    training.step(1)
    training.model.train()
    training.step(2)


def retained_gradients(training: Training) -> None:
    """Retain the gradients of what the blocks return."""
    kept: list[torch.Tensor] = []

    def keep(module: Any, args: Any, output: Any) -> None:
        hidden = _first(output)
        if hidden.requires_grad:
            hidden.retain_grad()
            kept.append(hidden)

    layers: Any = training.model.layers
    handles = [layer.register_forward_hook(keep) for layer in layers]
    training.backward(training.forward())
    training.note("gradient", [hidden.grad for hidden in kept])
    for handle in handles:
        handle.remove()
    training.update()


def step_in_backward(training: Training) -> None:
    """Update each parameter as soon as its gradient is there, and drop the gradient."""

    def update(parameter: Any) -> None:
        parameter.data.sub_(0.05 * parameter.grad)
        parameter.grad = None

    for parameter in training.model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(update)  # type: ignore[no-untyped-call]
    for number in range(3):
        training.backward(training.forward(number))
        training.note("weight", dict(training.model.named_parameters()))


def without_early_stop(training: Training) -> None:
    """Let the recompute run to its end."""
    with set_checkpoint_early_stop(False):
        training.step(0)
        training.step(1)


def draws_between(training: Training) -> None:
    """Random numbers are drawn between forward and backward, as by augmentation of the next batch."""
    for number in range(2):
        loss = training.forward(number)
        training.note("drawn", functional.dropout(torch.ones(4)))
        training.backward(loss)
        training.update()


def larger_batch(training: Training) -> None:
    """Batches of other sizes follow one another."""
    for number, rows in enumerate((2, 1, 3)):
        values = torch.cat([training.batch(number), training.batch(number + 1)])[:rows]
        training.backward(training.forward(values=values))
        training.update()


# interruptions


def _between(happens: Callable[[Training, Any], None]) -> Loop:
    """Make a loop in which something happens between the first forward and its backward."""

    @functools.wraps(happens)
    def train(training: Training) -> None:
        loss = training.forward(0)
        happens(training, training.model.layers)
        training.backward(loss)
        training.update()

    return train


@_between
def optimizer_between(training: Training, layers: Any) -> None:
    """Write parameters that nothing in the graph needs, as an optimizer does."""
    with torch.no_grad():
        for layer in dict.fromkeys(layers):
            layer.down.bias.mul_(0.5)


@_between
def swapped_back(training: Training, layers: Any) -> None:
    """Averaged weights are put in for an evaluation between forward and backward, and taken out again."""
    kept = {name: parameter.detach().clone() for name, parameter in training.model.named_parameters()}
    for parameter in training.model.parameters():
        parameter.data.mul_(1.1)
    training.evaluate(3)
    for name, parameter in training.model.named_parameters():
        parameter.data.copy_(kept[name])


@_between
def evaluation_between(training: Training, layers: Any) -> None:
    """Put the model into evaluation mode."""
    training.model.eval()


@_between
def evaluated_between(training: Training, layers: Any) -> None:
    """Evaluate the model, and put it back into training mode."""
    training.model.eval()
    training.evaluate(3)
    training.model.train()


def undone_between(training: Training) -> None:
    """Take the treatment back between a forward and its backward."""
    loss = training.forward(0)
    training.undo()
    training.backward(loss)
    training.update()
    training.step(1)


@_between
def attribute_between(training: Training, layers: Any) -> None:
    """Change an attribute that a block reads: the rate of a dropout."""
    for module in training.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.9


def frozen_later(training: Training) -> None:
    """Parameters are frozen and freed between steps."""
    layers: Any = training.model.layers
    for number, trained in enumerate((True, False, True)):
        layers[0].requires_grad_(trained)
        training.step(number)


def modes(training: Training) -> None:
    """Train in training mode, in evaluation mode, and with parts in evaluation mode."""
    training.step(0)
    training.model.eval()
    training.step(1)
    training.model.train()
    layers: Any = training.model.layers
    layers[0].up.eval()
    training.step(2)


def dropped_forward(training: Training) -> None:
    """Go forward where nobody goes backward."""
    training.forward(4)
    training.step(0)
    training.forward(5)
    training.step(1)


def copied_model(training: Training) -> None:
    """After a step a copy of the model trains on, and so does the model."""
    training.step(0)
    copied = copy.deepcopy(training.model)
    copied(training.batch(1)).backward()
    training.end_backward()
    training.note("gradient", {name: parameter.grad for name, parameter in copied.named_parameters()})
    training.step(2)


def redone(training: Training) -> None:
    """After a step the treatment is taken back and given again, or given once more."""
    training.step(0)
    if training.rng.random() < 0.5:
        training.undo()
    training.treat()
    training.step(1)
    training.step(2)


# late


class LateSteps(_Staged):
    """Plain steps; the features of the case begin late."""

    def train(self, training: Training) -> None:
        layers: Any = training.model.layers
        self.layer: Any = training.rng.choice(list(layers))
        self.prepare(training)
        for number in range(training.late + training.blocks + 2):
            self.begun = number >= training.late
            if number == training.late:
                self.begin(training)
            self.step(training, number)

    def prepare(self, training: Training) -> None:
        """Prepare the first step."""

    def begin(self, training: Training) -> None:
        """Begin what is late, before its first step."""

    def step(self, training: Training, number: int) -> None:
        """Take one step."""
        loss = training.forward(number)
        if self.begun:
            self.between(training)
        training.backward(loss)
        training.update()

    def between(self, training: Training) -> None:
        """Do something between a late forward and its backward."""


class LateSummedLosses(LateSteps):
    """Two forwards before one backward."""

    def step(self, training: Training, number: int) -> None:
        loss = training.forward(number)
        training.backward(loss + training.forward(number + 50) if self.begun else loss)
        training.update()


class LateEvaluation(LateSteps):
    """The model is put into evaluation mode between forward and backward, or is evaluated there."""

    def step(self, training: Training, number: int) -> None:
        training.model.train()
        super().step(training, number)

    def between(self, training: Training) -> None:
        training.model.eval()
        if training.rng.random() < 0.5:
            training.evaluate(60)
            training.model.train()


class LateReplacedPart(LateSteps):
    """A part of a block is replaced by another, before a forward."""

    def begin(self, training: Training) -> None:
        self.layer.up = nn.Sequential(linear(), nn.Tanh(), linear())


class LateFlag(LateSteps):
    """An outside flag, which a hook in a block reads, that changes between forward and backward."""

    def prepare(self, training: Training) -> None:
        self.flag = False
        self.layer.up.register_forward_hook(lambda module, args, output: output * (2.0 if self.flag else 1.0))

    def between(self, training: Training) -> None:
        self.flag = not self.flag


class LateHook(LateSteps):
    """A new hook on a part of a block that counts, outside, what it changes."""

    def prepare(self, training: Training) -> None:
        self.count = 0

    def begin(self, training: Training) -> None:
        self.layer.up.register_forward_hook(self._hook)

    def _hook(self, module: Any, args: Any, output: Tensor) -> Tensor:
        self.count += 1
        return scaled(output, 0.1 * self.count)


class _LateWrite(LateSteps):
    """A hook on a part of a block, there from the start, that begins to write what it reads."""

    def prepare(self, training: Training) -> None:
        self.head: Any = training.model.head
        self.layer.up.register_forward_hook(self._hook)

    def _hook(self, module: Any, args: Any, output: Tensor) -> Tensor:
        return scaled(output, self.write(module, output.detach())) if self.begun else output

    def write(self, part: Any, output: Tensor) -> Any:
        """Write, and return what was there."""
        raise NotImplementedError


class LateOutsideTensor(_LateWrite):
    """A tensor on a module outside of the block, which keeps the last call's result."""

    def write(self, part: Any, output: Tensor) -> Any:
        last = getattr(self.head, "kept", 0.0)
        self.head.kept = output.mean()
        return last


class LateBuffer(_LateWrite):
    """A buffer of the block, written in place: a small one or a large one."""

    def prepare(self, training: Training) -> None:
        super().prepare(training)
        self.layer.up.register_buffer("late_buffer", torch.zeros(training.rng.choice([1, 9000])))

    def write(self, part: Any, output: Tensor) -> Any:
        part.late_buffer += 0.1
        return part.late_buffer[0]


class LateNestedCheckpoint(LateSteps):
    """A part of a block begins to checkpoint itself."""

    def begin(self, training: Training) -> None:
        forward = self.layer.down.forward
        self.layer.down.forward = lambda hidden: checkpoint(forward, hidden, use_reentrant=False)


# exceptions

_HELD = ("last_type", "last_value", "last_traceback")
"""What an interactive Python keeps of the last error."""


class Interrupted(Exception):
    """A training with something that does not finish."""


class _Interruption(_Staged):
    """Healthy steps, one that ends in an error, and healthy steps."""

    error: ClassVar[type[BaseException]] = Interrupted
    everywhere: ClassVar[bool] = True
    """Whether the error comes without checkpointing too."""

    def train(self, training: Training) -> None:
        for number in range(training.rng.choice((1, 1, 2, 4))):
            training.step(number)
        layers: Any = training.model.layers
        self.armed = False
        part = training.rng.choice(["up", "down"])
        handle = getattr(training.rng.choice(list(layers)), part).register_forward_pre_hook(self._in_forward)
        try:
            self.interrupt(training)
        except BaseException as error:
            refused = isinstance(error, SurgeryError) and not isinstance(error.__cause__, self.error)
            if refused or not self.armed:
                raise
            if self.everywhere:
                training.note("error", type(error).__name__)
            for name, value in zip(_HELD, (type(error), error, error.__traceback__), strict=True):
                setattr(sys, name, value)
        self.armed = False
        handle.remove()
        try:
            self.go_on(training)
        finally:
            for name in _HELD:
                vars(sys).pop(name, None)

    def interrupt(self, training: Training) -> None:
        """Run a step that an error ends, which comes once `armed`."""
        self.armed = True
        training.forward(20)

    def go_on(self, training: Training) -> None:
        """Drop what the step has left, and train on."""
        training.drop_gradients()
        for number in range(10, 13):
            training.step(number)

    def _in_forward(self, module: Any, args: Any) -> None:
        self._fail()

    def _fail(self) -> None:
        if self.armed:
            raise self.error


class ForwardInterrupted(_Interruption):
    """A part of a block raises in its forward."""


class ForwardKeyboardInterrupt(_Interruption):
    """Ctrl-C in a forward."""

    error = KeyboardInterrupt


class RecomputeInterrupted(_Interruption):
    """A part of a block that raises in its recompute; without checkpointing the backward ends, and is dropped."""

    everywhere = False

    def interrupt(self, training: Training) -> None:
        loss = training.forward(20)
        self.armed = True
        training.backward(loss)


class RecomputeKeyboardInterrupt(RecomputeInterrupted):
    """Ctrl-C in a recompute."""

    error = KeyboardInterrupt


class BackwardInterrupted(_Interruption):
    """A hook on a gradient that raises between the backwards of two blocks, outside of recomputes."""

    def _in_forward(self, module: Any, args: Any) -> None:
        """Leave it to the hook."""

    def interrupt(self, training: Training) -> None:
        layers: Any = training.model.layers
        loss = training.forward(20)
        handle = layers[-1].down.bias.register_hook(lambda gradient: self._fail())
        self.armed = True
        try:
            training.backward(loss)
        finally:
            handle.remove()


class InterruptedAndCaught(_Interruption):
    """A forward that raises, and the backward of an earlier one while the error is held."""

    def interrupt(self, training: Training) -> None:
        self._earlier = training.forward(21)
        super().interrupt(training)

    def go_on(self, training: Training) -> None:
        training.backward(self._earlier)
        training.update()
        super().go_on(training)


def _named(*loops: Callable[..., Any]) -> dict[str, Loop]:
    """Name loops as cases do: one_step is OneStep. A class makes a new one for each training."""
    named: dict[str, Loop] = {}
    for loop in loops:
        name = "".join(word.capitalize() for word in re.findall("[A-Za-z][a-z]*", loop.__name__))
        made: Any = loop
        named[name] = made.loop if isinstance(loop, type) else made
    return named


LOOPS: dict[str, dict[str, Loop]] = {
    "steps": _named(
        one_step, three_steps, eight_steps, accumulation, summed_losses, backwards_in_reverse, retained_graph,
        gradient_penalty, grad_function, forward_mode, in_evaluation_mode, retained_gradients, step_in_backward,
        without_early_stop, draws_between, larger_batch,
    ),
    "interruptions": _named(
        optimizer_between, swapped_back, evaluation_between, evaluated_between, undone_between, attribute_between,
        frozen_later, modes, dropped_forward, copied_model, redone,
    ),
    "late": _named(
        LateSteps, LateSummedLosses, LateEvaluation, LateReplacedPart, LateFlag, LateHook, LateOutsideTensor,
        LateBuffer, LateNestedCheckpoint,
    ),
    "exceptions": _named(
        ForwardInterrupted, ForwardKeyboardInterrupt, RecomputeInterrupted, RecomputeKeyboardInterrupt,
        BackwardInterrupted, InterruptedAndCaught,
    ),
}  # fmt: skip
