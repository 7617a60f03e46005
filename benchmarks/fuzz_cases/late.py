"""Training loops in which something begins late: every block has been looked at in the first steps, and was right.

The training goes on until every block was looked at once more.
"""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.fuzz_cases.feature import linear, scaled
from benchmarks.fuzz_cases.training import Scenario, Training


class LateSteps(Scenario):
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
        """What is done before the first step."""

    def begin(self, training: Training) -> None:
        """What is done once, before the first late step."""

    def step(self, training: Training, number: int) -> None:
        """One step."""
        loss = training.forward(number)
        if self.begun:
            self.between(training)
        training.backward(loss)
        training.update()

    def between(self, training: Training) -> None:
        """What is done between a late forward and its backward."""


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


class LateWrittenWeight(LateSteps):
    """A weight that nothing in the graph needs is written between forward and backward."""

    def between(self, training: Training) -> None:
        with torch.no_grad():
            self.layer.down.bias.mul_(0.5)


class LateAttributeBetween(LateSteps):
    """An attribute that a hook in a block reads changes between forward and backward."""

    def prepare(self, training: Training) -> None:
        self.layer.up.gain = 1.0
        self.layer.up.register_forward_hook(lambda module, args, output: output * module.gain)

    def between(self, training: Training) -> None:
        self.layer.up.gain *= 1.5


class LateFlag(LateSteps):
    """A flag outside, which a hook in a block reads, is turned between forward and backward."""

    def prepare(self, training: Training) -> None:
        self.flag = False
        self.layer.up.register_forward_hook(lambda module, args, output: output * (2.0 if self.flag else 1.0))

    def between(self, training: Training) -> None:
        self.flag = not self.flag


class LateHook(LateSteps):
    """A hook on a part of a block comes, and counts outside what it changes."""

    def prepare(self, training: Training) -> None:
        self.count = 0

    def begin(self, training: Training) -> None:
        self.layer.up.register_forward_hook(self._hook)

    def _hook(self, module: Any, args: Any, output: Tensor) -> Tensor:
        self.count += 1
        return scaled(output, 0.1 * self.count)


class _LateWrite(LateSteps):
    """A hook on a part of a block, there from the beginning, begins to write what it reads."""

    def prepare(self, training: Training) -> None:
        self.head: Any = training.model.head
        self.layer.up.register_forward_hook(self._hook)

    def _hook(self, module: Any, args: Any, output: Tensor) -> Tensor:
        return scaled(output, self.write(module, output.detach())) if self.begun else output

    def write(self, part: Any, output: Tensor) -> Any:
        """Write, and return what was there."""
        raise NotImplementedError


class LateOutsideTensor(_LateWrite):
    """A tensor on a module outside of the block, which keeps what the last call made."""

    def write(self, part: Any, output: Tensor) -> Any:
        last = getattr(self.head, "kept", 0.0)
        self.head.kept = output.mean()
        return last


class LateAttribute(_LateWrite):
    """A number on a module of the block."""

    def write(self, part: Any, output: Tensor) -> Any:
        part.late_calls = getattr(part, "late_calls", 0) + 1
        return 0.1 * part.late_calls


class LateBuffer(_LateWrite):
    """A buffer of the block, written in place: a small one or a large one."""

    def prepare(self, training: Training) -> None:
        super().prepare(training)
        self.layer.up.register_buffer("late_buffer", torch.zeros(training.rng.choice([1, 9000])))

    def write(self, part: Any, output: Tensor) -> Any:
        part.late_buffer += 0.1
        return part.late_buffer[0]


class LateDraw(_LateWrite):
    """Random numbers of Python or NumPy."""

    def prepare(self, training: Training) -> None:
        super().prepare(training)
        self.draw = training.rng.choice([random.random, numpy.random.rand])

    def write(self, part: Any, output: Tensor) -> Any:
        return float(self.draw())


class LateNestedCheckpoint(LateSteps):
    """A part of a block begins to checkpoint itself."""

    def begin(self, training: Training) -> None:
        forward = self.layer.down.forward
        self.layer.down.forward = lambda hidden: checkpoint(forward, hidden, use_reentrant=False)
