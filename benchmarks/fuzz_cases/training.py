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


@dataclass(eq=False)
class Training:
    """What a scenario trains. `treat` gives the model its treatment, as was done once before; `undo` takes it back."""

    model: nn.Module
    features: Sequence[Feature]
    rng: random.Random
    treat: Callable[[], Callable[[], None]]
    undo: Callable[[], None]
    notes: list[tuple[str, Leaves]] = field(default_factory=list)
    optimizer: torch.optim.Optimizer | None = None

    def batch(self, number: int = 0, *, requires_grad: bool = False) -> Tensor:
        """Values of shape (batch, positions, inputs), the same for the same number."""
        generator = torch.Generator().manual_seed(1000 + number)
        values = torch.randn((BATCH, POSITIONS, INPUTS), generator=generator, dtype=torch.float64)
        return values.to(torch.get_default_dtype()).requires_grad_(requires_grad)

    def forward(self, number: int = 0) -> Tensor:
        """The loss of a batch, after what the features do between forward and backward."""
        loss: Tensor = self.model(self.batch(number))
        self.note("loss", loss)
        self.between()
        return loss

    def between(self) -> None:
        """What the features do between a forward and its backward."""
        for feature in self.features:
            feature.after_forward(self.model)

    def step(self, number: int = 0) -> None:
        """One step of training with an optimizer that has momentum."""
        self.forward(number).backward()  # type: ignore[no-untyped-call]
        self.update()

    def update(self) -> None:
        """Note the gradients, let the optimizer step, and drop them."""
        self.note_gradients()
        if self.optimizer is None:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.5)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def note(self, label: str, value: Any) -> None:
        """Keep a copy of something that has to be the same in both runs."""
        self.notes.append((label, leaves_of(value)))

    def note_gradients(self) -> None:
        """Keep a copy of the gradients of all parameters."""
        self.note("gradient", {name: parameter.grad for name, parameter in self.model.named_parameters()})


class Scenario:
    """A training loop."""

    def train(self, training: Training) -> None:
        """Train, and note what has to be the same."""
        raise NotImplementedError
