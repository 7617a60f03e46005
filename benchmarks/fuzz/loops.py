"""Training loops: how forwards, backwards and steps follow one another, and what happens between them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.fuzz.model import BATCH, INPUTS, POSITIONS, FuzzModel


@dataclass(frozen=True, slots=True)
class Note:
    """What has to be the same with checkpointing and without, and the step in which it was noted."""

    label: str
    value: Tensor | None
    step: int


@dataclass(eq=False)
class Training:
    """What a loop trains. `treat` gives the model its treatment, and returns what takes that back."""

    model: FuzzModel
    treat: Callable[[], Callable[[], None]]
    undo: Callable[[], None] = lambda: None
    notes: list[Note] = field(default_factory=list)
    optimizer: torch.optim.Optimizer | None = None
    steps: int = 0
    """How many steps have ended."""

    def batch(self, number: int) -> Tensor:
        """Values of shape (batch, positions, inputs), the same for the same number."""
        generator = torch.Generator().manual_seed(1000 + number)
        return torch.randn((BATCH, POSITIONS, INPUTS), generator=generator)

    def forward(self, number: int = 0) -> Tensor:
        """Return the loss of a batch."""
        loss: Tensor = self.model(self.batch(number))
        self.note({"loss": loss})
        return loss

    def step(self, number: int) -> None:
        """One step of training with an optimizer that has momentum."""
        backward(self.forward(number))
        self.update()

    def update(self) -> None:
        """Note the gradients, let the optimizer step, and drop them."""
        self.note(gradients_of(self.model))
        if self.optimizer is None:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.5)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1

    def note(self, values: Mapping[str, Tensor | None]) -> None:
        """Keep copies of what has to be the same in both trainings."""
        copies = ((label, None if value is None else value.detach().clone()) for label, value in values.items())
        self.notes += [Note(label, value, self.steps) for label, value in copies]


def backward(loss: Tensor) -> None:
    """Go backward through a loss."""
    loss.backward()  # type: ignore[no-untyped-call]


def gradients_of(model: torch.nn.Module) -> dict[str, Tensor | None]:
    """Return the gradient of each parameter."""
    return {f"gradient of {name}": parameter.grad for name, parameter in model.named_parameters()}


def steps(training: Training) -> None:
    """Train on other batches; in the last steps not every block is looked at."""
    for number in range(5):
        training.step(number)


def accumulation(training: Training) -> None:
    """Run two backwards before a step."""
    for first in (0, 2):
        for number in (first, first + 1):
            backward(training.forward(number))
        training.update()


def summed_losses(training: Training) -> None:
    """Run two forwards before one backward."""
    for first in (0, 2):
        backward(training.forward(first) + training.forward(first + 1))
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
        backward(training.forward(number))
        training.note(dict(training.model.named_parameters()))
        training.steps += 1


def evaluated_between(training: Training) -> None:
    """Evaluate between steps, and between a forward and its backward."""
    training.step(0)
    loss = training.forward(1)
    training.model.eval()
    with torch.no_grad():
        training.forward(3)
    training.model.train()
    backward(loss)
    training.update()


def evaluation_mode(training: Training) -> None:
    """Train in training mode, in evaluation mode, and with parts in evaluation mode."""
    training.step(0)
    training.model.eval()
    training.step(1)
    training.model.train()
    training.model.layers[0].up.eval()  # type: ignore[union-attr]
    training.step(2)


def frozen_later(training: Training) -> None:
    """Parameters are frozen and freed between steps."""
    for number, trained in enumerate((True, False, True)):
        training.model.layers[0].requires_grad_(trained)
        training.step(number)


def copied_model(training: Training) -> None:
    """After a step a copy of the model trains on, and so does the model."""
    training.step(0)
    copied = copy.deepcopy(training.model)
    backward(copied(training.batch(1)))
    training.note(gradients_of(copied))
    training.step(2)


def redone(training: Training) -> None:
    """After a step the treatment is taken back and given again, and once more."""
    training.step(0)
    training.undo()
    for number in (1, 2):
        training.undo = training.treat()
        training.step(number)


def interrupted(training: Training) -> None:
    """After a step one is ended by Ctrl-C in the forward of a block; the training goes on."""
    training.step(0)

    def interrupt(module: torch.nn.Module, args: Any) -> None:
        raise KeyboardInterrupt

    handle = training.model.layers[1].up.register_forward_pre_hook(interrupt)  # type: ignore[union-attr]
    try:
        training.forward(1)
    except KeyboardInterrupt:
        training.note({"interrupted": None})
    handle.remove()
    for number in (1, 2):
        training.step(number)


LOOPS: dict[str, Callable[[Training], None]] = {
    loop.__name__: loop
    for loop in (
        *(steps, accumulation, summed_losses, step_in_backward),
        *(evaluated_between, evaluation_mode, frozen_later, copied_model, redone, interrupted),
    )
}
"""The training loops by name."""
