"""Training loops: how forwards, backwards and steps follow one another, and what happens between them."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.fuzz_cases.model import BATCH, INPUTS, POSITIONS, Feature, scaled
from benchmarks.fuzz_cases.snapshot import Leaves, leaves_of
from ckpt_surgery.errors import SurgeryError

FIRST_STEPS = 3
"""The steps in which every block is looked at. Later, one is in each."""


@dataclass(frozen=True, slots=True)
class Note:
    """What has to be the same in both runs, and the step in which it was noted."""

    label: str
    leaves: Leaves
    step: int


@dataclass(eq=False)
class Training:
    """What a loop trains. `treat` gives the model its treatment, as was done once before; `undo` takes it back.

    A `step` begins with the first forward that follows a backward; from step `late` on features are live, and a
    training that goes on for so many more steps as there are `blocks` has looked at each.
    """

    model: nn.Module
    features: Sequence[Feature]
    rng: random.Random
    treat: Callable[[], Callable[[], None]]
    undo: Callable[[], None]
    late: int
    blocks: int
    notes: list[Note] = field(default_factory=list)
    optimizer: torch.optim.Optimizer | None = None
    step_number: int = 0
    _went_back: bool = False

    @property
    def layers(self) -> Any:
        """The blocks."""
        return self.model.layers

    def batch(self, number: int = 0) -> Tensor:
        """Values of shape (batch, positions, inputs), the same for the same number."""
        generator = torch.Generator().manual_seed(1000 + number)
        return torch.randn((BATCH, POSITIONS, INPUTS), generator=generator)

    def run(self, values: Tensor) -> Any:
        """Return what the model makes of a batch and of what the features give it."""
        self.step_number += self._went_back
        self._went_back = False
        given: dict[str, Any] = {}
        for feature in self.features:
            feature.live = self.step_number >= self.late
            given |= feature.inputs()
        return self.model(values, **given)

    def forward(self, number: int = 0, values: Tensor | None = None) -> Tensor:
        """Return the loss of a batch."""
        loss: Tensor = self.run(self.batch(number) if values is None else values)
        self.note("loss", loss)
        return loss

    def backward(self, loss: Tensor, **options: Any) -> None:
        """Go backward through a loss."""
        try:
            loss.backward(**options)  # type: ignore[no-untyped-call]
        finally:
            self.end_backward()

    def end_backward(self) -> None:
        """Do what follows a backward."""
        self._went_back = True
        for feature in self.features:
            feature.after_backward()

    def step(self, number: int = 0) -> None:
        """One step of training with an optimizer that has momentum."""
        self.backward(self.forward(number))
        self.update()

    def update(self) -> None:
        """Note the gradients, let the optimizer step, and drop them."""
        self.note("gradient", {name: parameter.grad for name, parameter in self.model.named_parameters()})
        if self.optimizer is None:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.5)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def note(self, label: str, value: Any) -> None:
        """Keep a copy of something that has to be the same in both runs."""
        self.notes.append(Note(label, leaves_of(value), self.step_number))

    def evaluate(self, number: int) -> None:
        """Note what the model makes of a batch without gradients."""
        with torch.no_grad():
            self.note("evaluation", self.run(self.batch(number)))


Loop = Callable[[Training], None]
"""Trains, and notes what has to be the same."""

# steps


def steps(count: int) -> Loop:
    """Make a loop of steps with other batches; in eight, not every block is watched in each."""

    def train(training: Training) -> None:
        for number in range(count):
            training.step(number)

    return train


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


def gradient_penalty(training: Training) -> None:
    """Make the gradient of the loss by the inputs part of a second loss."""
    for number in range(2):
        values = training.batch(number).requires_grad_()
        loss = training.forward(values=values)
        (slope,) = torch.autograd.grad(loss, values, create_graph=True)
        training.note("slope", slope)
        training.backward(loss + slope.square().sum())
        training.update()


def step_in_backward(training: Training) -> None:
    """Update each parameter as soon as its gradient is there, and drop the gradient."""

    def update(parameter: Any) -> None:
        with torch.no_grad():
            parameter.sub_(0.05 * parameter.grad)
        parameter.grad = None

    for parameter in training.model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(update)  # type: ignore[no-untyped-call]
    for number in range(3):
        training.backward(training.forward(number))
        training.note("weight", dict(training.model.named_parameters()))


def draws_between(training: Training) -> None:
    """Random numbers are drawn between forward and backward, as by augmentation of the next batch."""
    for number in range(2):
        loss = training.forward(number)
        training.note("drawn", functional.dropout(torch.ones(4)))
        training.backward(loss)
        training.update()


# interruptions


def evaluated_between(training: Training) -> None:
    """Evaluate between forward and backward, and put the model back into training mode or not."""
    loss = training.forward(0)
    training.model.eval()
    training.evaluate(3)
    training.model.train(training.rng.random() < 0.5)
    training.backward(loss)
    training.update()


def modes(training: Training) -> None:
    """Train in training mode, in evaluation mode, and with parts in evaluation mode."""
    training.step(0)
    training.model.eval()
    training.step(1)
    training.model.train()
    training.layers[0].up.eval()
    training.step(2)


def frozen_later(training: Training) -> None:
    """Parameters are frozen and freed between steps."""
    for number, trained in enumerate((True, False, True)):
        training.layers[0].requires_grad_(trained)
        training.step(number)


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

Begin = Callable[[Training, Any], None]
Between = Callable[[Training, Tensor], Tensor]


def late(begin: Begin = lambda training, layer: None, between: Between = lambda training, loss: loss) -> Loop:
    """Make a loop of plain steps; from a late one on, something happens between forward and backward."""

    def train(training: Training) -> None:
        layer = training.rng.choice(list(training.layers))
        for number in range(training.late + training.blocks + 2):
            training.model.train()
            if number == training.late:
                begin(training, layer)
            loss = training.forward(number)
            training.backward(between(training, loss) if number >= training.late else loss)
            training.update()

    return train


def _second_forward(training: Training, loss: Tensor) -> Tensor:
    return loss + training.forward(50)


def _evaluation(training: Training, loss: Tensor) -> Tensor:
    training.model.eval()
    if training.rng.random() < 0.5:
        training.evaluate(60)
        training.model.train()
    return loss


def _counting_hook(training: Training, layer: Any) -> None:
    """Add a hook to a part of a block, which counts outside what it changes."""
    count = 0

    def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return scaled(output, 0.1 * count)

    layer.up.register_forward_hook(hook)


# exceptions


class Interrupted(Exception):
    """A training with something that does not finish."""


def interrupted(error: type[BaseException], *, recompute: bool = False) -> Loop:
    """Make a loop of healthy steps, of which one is ended by an error in the forward or recompute of a block."""

    def train(training: Training) -> None:
        for number in range(training.rng.choice((1, 1, 2, 4))):
            training.step(number)
        armed = not recompute

        def fail(module: nn.Module, args: Any) -> None:
            if armed:
                raise error

        part = training.rng.choice(list(training.layers)).up
        handle = part.register_forward_pre_hook(fail)
        try:
            loss = training.forward(20)
            armed = True
            training.backward(loss)
        except (error, SurgeryError) as raised:
            if isinstance(raised, SurgeryError) and not isinstance(raised.__cause__, error):
                raise
            if not recompute:
                training.note("error", error.__name__)
        handle.remove()
        training.model.zero_grad()
        for number in range(10, 13):
            training.step(number)

    return train


LOOPS: dict[str, dict[str, Loop]] = {
    "steps": {
        "OneStep": steps(1),
        "ThreeSteps": steps(3),
        "EightSteps": steps(8),
        "Accumulation": accumulation,
        "SummedLosses": summed_losses,
        "GradientPenalty": gradient_penalty,
        "StepInBackward": step_in_backward,
        "DrawsBetween": draws_between,
    },
    "interruptions": {
        "EvaluatedBetween": evaluated_between,
        "Modes": modes,
        "FrozenLater": frozen_later,
        "DroppedForward": dropped_forward,
        "CopiedModel": copied_model,
        "Redone": redone,
    },
    "late": {
        "LateSteps": late(),
        "LateSummedLosses": late(between=_second_forward),
        "LateEvaluation": late(between=_evaluation),
        "LateHook": late(_counting_hook),
    },
    "exceptions": {
        "ForwardInterrupted": interrupted(Interrupted),
        "ForwardKeyboardInterrupt": interrupted(KeyboardInterrupt),
        "RecomputeInterrupted": interrupted(Interrupted, recompute=True),
    },
}
