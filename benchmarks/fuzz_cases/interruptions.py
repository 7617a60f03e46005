"""Training loops in which something happens to the model between a forward and its backward, or between steps."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from benchmarks.fuzz_cases.training import Scenario, Training


class StepBetween(Scenario):
    """The weights change between forward and backward, unnoticed by autograd."""

    def train(self, training: Training) -> None:
        loss = training.forward()
        for parameter in training.model.parameters():
            parameter.data.mul_(0.9)
        loss.backward()  # type: ignore[no-untyped-call]
        training.update()


class OptimizerBetween(Scenario):
    """An optimizer steps between a forward and its backward, on parameters that nothing in the graph needs."""

    def train(self, training: Training) -> None:
        training.step(0)
        second = training.forward(1)
        layers: Any = training.model.layers
        with torch.no_grad():
            for layer in dict.fromkeys(layers):
                layer.down.bias.mul_(0.5)
        second.backward()  # type: ignore[no-untyped-call]
        training.update()


class ReplacedParameters(Scenario):
    """Parameters are replaced by others between forward and backward."""

    def train(self, training: Training) -> None:
        loss = training.forward()
        layers: Any = training.model.layers
        before = layers[0].down.weight
        layers[0].down.weight = nn.Parameter(before.detach() * 1.5)
        loss.backward()  # type: ignore[no-untyped-call]
        training.note("gradient", before.grad)
        training.update()


class SwappedBack(Scenario):
    """Averaged weights are put in for an evaluation between forward and backward, and taken out again or not."""

    def train(self, training: Training) -> None:
        loss = training.forward()
        kept = {name: parameter.detach().clone() for name, parameter in training.model.named_parameters()}
        for parameter in training.model.parameters():
            parameter.data.mul_(1.1)
        with torch.no_grad():
            training.note("evaluation", training.model(training.batch(3)))
        for name, parameter in training.model.named_parameters():
            parameter.data.copy_(kept[name])
        loss.backward()  # type: ignore[no-untyped-call]
        training.update()


class Toggled(Scenario):
    """Parameters are frozen, or freed, between forward and backward."""

    def train(self, training: Training) -> None:
        freed = training.rng.random() < 0.5
        layers: Any = training.model.layers
        if freed:
            layers[0].up.requires_grad_(False)
        loss = training.forward()
        layers[0].up.requires_grad_(freed)
        loss.backward()  # type: ignore[no-untyped-call]
        training.update()


class FrozenLater(Scenario):
    """Parameters are frozen and freed between steps."""

    def train(self, training: Training) -> None:
        layers: Any = training.model.layers
        for number, trained in enumerate((True, False, True)):
            layers[0].requires_grad_(trained)
            training.step(number)


class EvaluationBetween(Scenario):
    """The model is put into evaluation mode between forward and backward."""

    def train(self, training: Training) -> None:
        loss = training.forward()
        training.model.eval()
        loss.backward()  # type: ignore[no-untyped-call]
        training.update()


class EvaluatedBetween(Scenario):
    """The model is evaluated between forward and backward, and trains again before it."""

    def train(self, training: Training) -> None:
        loss = training.forward()
        training.model.eval()
        with torch.no_grad():
            training.note("evaluation", training.model(training.batch(3)))
        training.model.train()
        loss.backward()  # type: ignore[no-untyped-call]
        training.update()


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


class WithoutGradients(Scenario):
    """A forward without gradients, as of a reference model, before each step."""

    def train(self, training: Training) -> None:
        for number in range(2):
            with torch.no_grad():
                training.note("reference", training.model(training.batch(number + 5)))
            training.step(number)


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
        training.note("gradient", {name: parameter.grad for name, parameter in copied.named_parameters()})
        training.step(2)


class Undone(Scenario):
    """After a step the treatment is taken back, and the model trains on."""

    def train(self, training: Training) -> None:
        training.step(0)
        training.undo()
        copy.deepcopy(training.model)
        training.step(1)


class Redone(Scenario):
    """After a step the treatment is taken back and given again."""

    def train(self, training: Training) -> None:
        training.step(0)
        training.undo()
        training.treat()
        training.step(1)
        training.step(2)


class TreatedTwice(Scenario):
    """After a step the treatment is given once more."""

    def train(self, training: Training) -> None:
        training.step(0)
        training.treat()
        training.step(1)


class UndoneBetween(Scenario):
    """The treatment is taken back between a forward and its backward."""

    def train(self, training: Training) -> None:
        loss = training.forward(0)
        training.undo()
        loss.backward()  # type: ignore[no-untyped-call]
        training.update()
        training.step(1)


class StateLoaded(Scenario):
    """The state at the beginning is loaded again after a step."""

    def train(self, training: Training) -> None:
        kept = copy.deepcopy(training.model.state_dict())
        training.step(0)
        training.model.load_state_dict(kept)
        training.step(1)


class _Interrupted(Exception):
    """A forward that does not come to its end."""


class Interrupted(Scenario):
    """A part of the last block raises in the first or second forward; then training goes on."""

    def train(self, training: Training) -> None:
        if training.rng.random() < 0.5:
            training.step(0)
        layers: Any = training.model.layers

        def fail(module: Any, args: Any) -> None:
            raise _Interrupted

        handle = layers[-1].down.register_forward_pre_hook(fail)
        try:
            training.forward(1)
        except _Interrupted:
            training.note("interrupted", True)
        handle.remove()
        training.step(2)
        training.step(3)


class LateHook(Scenario):
    """A hook that changes what a part of a block returns comes after the first step, and goes again."""

    def train(self, training: Training) -> None:
        training.step(0)
        layers: Any = training.model.layers
        handle = layers[0].up.register_forward_hook(lambda module, args, output: output * 1.2)
        training.step(1)
        handle.remove()
        training.step(2)


class HookBetween(Scenario):
    """A hook that changes what a part of a block returns comes between forward and backward."""

    def train(self, training: Training) -> None:
        loss = training.forward(0)
        layers: Any = training.model.layers
        layers[0].up.register_forward_hook(lambda module, args, output: output * 1.2)
        loss.backward()  # type: ignore[no-untyped-call]
        training.update()


class LateSideChannel(Scenario):
    """After the first step a hook begins to keep what a part makes, and the loss has a term of it."""

    def train(self, training: Training) -> None:
        training.step(0)
        layers: Any = training.model.layers
        kept: list[torch.Tensor] = []
        handle = layers[0].up.register_forward_hook(lambda module, args, output: kept.append(output))
        loss = training.forward(1)
        handle.remove()
        (loss + kept[0].square().mean()).backward()  # type: ignore[no-untyped-call]
        training.update()


class AttributeBetween(Scenario):
    """An attribute that a block reads changes between forward and backward: the rate of a dropout."""

    def train(self, training: Training) -> None:
        loss = training.forward(0)
        for module in training.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.9
        loss.backward()  # type: ignore[no-untyped-call]
        training.update()


class LargerBatch(Scenario):
    """Batches of other sizes follow one another."""

    def train(self, training: Training) -> None:
        for number, rows in enumerate((2, 1, 3)):
            values = torch.cat([training.batch(number), training.batch(number + 1)])[:rows]
            loss: Any = training.model(values)
            training.note("loss", loss)
            training.between()
            loss.backward()
            training.update()
