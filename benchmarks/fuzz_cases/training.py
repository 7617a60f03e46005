"""A training in progress: the model, what it is fed, and what is noted on the way for the judge."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.fuzz_cases.feature import BATCH, INPUTS, POSITIONS, Feature
from benchmarks.fuzz_cases.snapshot import Leaves, leaves_of

FIRST_STEPS = 3
"""The steps in which every block is looked at. Later, one is in each."""


@dataclass(frozen=True, slots=True)
class Note:
    """A value that both runs must share, and the step in which it was noted."""

    label: str
    leaves: Leaves
    step: int


@dataclass(eq=False)
class Training:
    """The training of a scenario. `treat` gives the model its treatment, as once before; `undo` takes it back.

    A `step` begins with the first forward that follows a backward; from step `late` on features are live, and a
    training that goes on for as many more steps as there are `blocks` has checked each.
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

    def batch(self, number: int = 0, *, requires_grad: bool = False) -> Tensor:
        """Values of shape (batch, positions, inputs), the same for the same number."""
        generator = torch.Generator().manual_seed(1000 + number)
        return torch.randn((BATCH, POSITIONS, INPUTS), generator=generator).requires_grad_(requires_grad)

    def run(self, values: Tensor) -> Any:
        """Return what the model makes of a batch and of what the features give it."""
        if self._went_back:
            self.step_number += 1
            self._went_back = False
        given: dict[str, Any] = {}
        for feature in self.features:
            feature.live = self.step_number >= self.late
            given |= feature.inputs()
        return self.model(values, **given)

    def forward(self, number: int = 0, values: Tensor | None = None) -> Tensor:
        """Return the loss of a batch, after what the features do between forward and backward."""
        loss: Tensor = self.run(self.batch(number) if values is None else values)
        self.note("loss", loss)
        for feature in self.features:
            feature.after_forward(self.model)
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
            feature.after_backward(self.model)

    def step(self, number: int = 0) -> None:
        """Take one training step with an optimizer that has momentum."""
        self.backward(self.forward(number))
        self.update()

    def update(self) -> None:
        """Note the gradients, let the optimizer step, and drop them."""
        self.note_gradients()
        if self.optimizer is None:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.5)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def drop_gradients(self) -> None:
        """Drop the gradients of all parameters, and of other leaves that features have."""
        self.model.zero_grad()
        for leaf in (getattr(feature, "leaf", None) for feature in self.features):
            if leaf is not None:
                leaf.grad = None

    def note(self, label: str, value: Any) -> None:
        """Keep a copy of something that has to be the same in both runs."""
        self.notes.append(Note(label, leaves_of(value), self.step_number))

    def note_gradients(self) -> None:
        """Keep a copy of the gradients of all parameters."""
        self.note("gradient", {name: parameter.grad for name, parameter in self.model.named_parameters()})

    def evaluate(self, number: int) -> None:
        """Note what the model makes of a batch without gradients."""
        with torch.no_grad():
            self.note("evaluation", self.run(self.batch(number)))
