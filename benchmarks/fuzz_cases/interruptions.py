"""Training loops in which something happens to the model between a forward and its backward, or between steps."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from benchmarks.fuzz_cases.training import Scenario, Training


class _Between(Scenario):
    """Something happens between the first forward and its backward."""

    def train(self, training: Training) -> None:
        loss = training.forward(0)
        layers: Any = training.model.layers
        self.between(training, layers)
        training.backward(loss)
        training.update()
        self.after(training)

    def between(self, training: Training, layers: Any) -> None:
        """What happens."""
        raise NotImplementedError

    def after(self, training: Training) -> None:
        """How the training goes on."""


class StepBetween(_Between):
    """The weights change between forward and backward, unnoticed by autograd."""

    def between(self, training: Training, layers: Any) -> None:
        for parameter in training.model.parameters():
            parameter.data.mul_(0.9)


class OptimizerBetween(_Between):
    """An optimizer steps between a forward and its backward, on parameters that nothing in the graph needs."""

    def between(self, training: Training, layers: Any) -> None:
        with torch.no_grad():
            for layer in dict.fromkeys(layers):
                layer.down.bias.mul_(0.5)


class SwappedBack(_Between):
    """Averaged weights are put in for an evaluation between forward and backward, and taken out again."""

    def between(self, training: Training, layers: Any) -> None:
        kept = {name: parameter.detach().clone() for name, parameter in training.model.named_parameters()}
        for parameter in training.model.parameters():
            parameter.data.mul_(1.1)
        training.evaluate(3)
        for name, parameter in training.model.named_parameters():
            parameter.data.copy_(kept[name])


class EvaluationBetween(_Between):
    """The model is put into evaluation mode between forward and backward."""

    def between(self, training: Training, layers: Any) -> None:
        training.model.eval()


class EvaluatedBetween(_Between):
    """The model is evaluated between forward and backward, and trains again before it."""

    def between(self, training: Training, layers: Any) -> None:
        training.model.eval()
        training.evaluate(3)
        training.model.train()


class UndoneBetween(_Between):
    """The treatment is taken back between a forward and its backward."""

    def between(self, training: Training, layers: Any) -> None:
        training.undo()

    def after(self, training: Training) -> None:
        training.step(1)


class HookBetween(_Between):
    """A hook that changes what a part of a block returns comes between forward and backward."""

    def between(self, training: Training, layers: Any) -> None:
        layers[0].up.register_forward_hook(lambda module, args, output: output * 1.2)


class AttributeBetween(_Between):
    """An attribute that a block reads changes between forward and backward: the rate of a dropout."""

    def between(self, training: Training, layers: Any) -> None:
        for module in training.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.9


class Toggled(Scenario):
    """Parameters are frozen, or freed, between forward and backward."""

    def train(self, training: Training) -> None:
        freed = training.rng.random() < 0.5
        layers: Any = training.model.layers
        if freed:
            layers[0].up.requires_grad_(False)
        loss = training.forward()
        layers[0].up.requires_grad_(freed)
        training.backward(loss)
        training.update()


class FrozenLater(Scenario):
    """Parameters are frozen and freed between steps."""

    def train(self, training: Training) -> None:
        layers: Any = training.model.layers
        for number, trained in enumerate((True, False, True)):
            layers[0].requires_grad_(trained)
            training.step(number)


class Modes(Scenario):
    """Steps in training mode, in evaluation mode, and with parts in evaluation mode."""

    def train(self, training: Training) -> None:
        training.step(0)
        training.model.eval()
        training.step(1)
        training.model.train()
        layers: Any = training.model.layers
        layers[0].up.eval()
        training.step(2)


class DroppedForward(Scenario):
    """A forward that nobody goes backward through."""

    def train(self, training: Training) -> None:
        training.forward(4)
        training.step(0)
        training.forward(5)
        training.step(1)


class CopiedModel(Scenario):
    """After a step a copy of the model trains on, and so does the model."""

    def train(self, training: Training) -> None:
        training.step(0)
        copied = copy.deepcopy(training.model)
        copied(training.batch(1)).backward()
        training.end_backward()
        training.note("gradient", {name: parameter.grad for name, parameter in copied.named_parameters()})
        training.step(2)


class Redone(Scenario):
    """After a step the treatment is taken back and given again, or given once more."""

    def train(self, training: Training) -> None:
        training.step(0)
        if training.rng.random() < 0.5:
            training.undo()
        training.treat()
        training.step(1)
        training.step(2)
