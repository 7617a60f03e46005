"""Training loops: how forwards, backwards and steps follow one another."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad
from torch.nn import functional
from torch.utils.checkpoint import set_checkpoint_early_stop

from benchmarks.fuzz_cases.training import Scenario, Training


class OneStep(Scenario):
    """One step."""

    def train(self, training: Training) -> None:
        training.step()


class ThreeSteps(Scenario):
    """Three steps with other batches."""

    def train(self, training: Training) -> None:
        for number in range(3):
            training.step(number)


class EightSteps(Scenario):
    """More steps than are watched in all blocks."""

    def train(self, training: Training) -> None:
        for number in range(8):
            training.step(number)


class Accumulation(Scenario):
    """Two backwards before a step."""

    def train(self, training: Training) -> None:
        for first in (0, 2):
            for number in (first, first + 1):
                training.backward(training.forward(number))
            training.update()


class SummedLosses(Scenario):
    """Two forwards before one backward."""

    def train(self, training: Training) -> None:
        for first in (0, 2):
            training.backward(training.forward(first) + training.forward(first + 1))
            training.update()


class BackwardsInReverse(Scenario):
    """Two forwards, and their backwards in the other order."""

    def train(self, training: Training) -> None:
        first, second = training.forward(0), training.forward(1)
        training.backward(second)
        training.note_gradients()
        training.backward(first)
        training.update()
        training.step(2)


class RetainedGraph(Scenario):
    """Two backwards through one graph."""

    def train(self, training: Training) -> None:
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


class GradientPenalty(Scenario):
    """The gradient of the loss by the inputs is part of a second loss."""

    def train(self, training: Training) -> None:
        for number in range(2):
            values = training.batch(number, requires_grad=True)
            loss = training.forward(values=values)
            (slope,) = torch.autograd.grad(loss, values, create_graph=True)
            training.note("slope", slope)
            training.backward(loss + slope.square().sum())
            training.update()


class GradFunction(Scenario):
    """`torch.autograd.grad` for all parameters."""

    def train(self, training: Training) -> None:
        chosen = [p for p in training.model.parameters() if p.requires_grad]
        for number in range(2):
            gradients = torch.autograd.grad(training.forward(number), chosen, allow_unused=True)
            training.note("gradient", list(gradients))
            training.end_backward()


class ForwardMode(Scenario):
    """A derivative along the inputs by forward-mode differentiation, and then a step."""

    def train(self, training: Training) -> None:
        values = training.batch()
        dual: Any = forward_ad
        with dual.dual_level():
            loss = training.run(dual.make_dual(values, torch.ones_like(values)))
            training.note("derivative", dual.unpack_dual(loss).tangent)
        training.step()


class InEvaluationMode(Scenario):
    """Steps in evaluation mode, and one behind them in training mode."""

    def train(self, training: Training) -> None:
        training.model.eval()
        training.step(0)
        training.step(1)
        training.model.train()
        training.step(2)


class RetainedGradients(Scenario):
    """The gradients of what the blocks return are kept."""

    def train(self, training: Training) -> None:
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


class StepInBackward(Scenario):
    """Each parameter is updated as soon as its gradient is there, and the gradient dropped."""

    def train(self, training: Training) -> None:
        def update(parameter: Any) -> None:
            parameter.data.sub_(0.05 * parameter.grad)
            parameter.grad = None

        for parameter in training.model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(update)  # type: ignore[no-untyped-call]
        for number in range(3):
            training.backward(training.forward(number))
            training.note("weight", dict(training.model.named_parameters()))


class MetaLearning(Scenario):
    """A step inside the loss: gradients go through `functional_call` with updated parameters."""

    def train(self, training: Training) -> None:
        second_order = training.rng.random() < 0.5
        parameters = {name: p for name, p in training.model.named_parameters() if p.requires_grad}
        loss = training.forward(0)
        weights = list(parameters.values())
        gradients: Any = torch.autograd.grad(loss, weights, create_graph=second_order, allow_unused=True)
        updated = {
            name: parameters[name] if gradient is None else parameters[name] - 0.1 * gradient
            for name, gradient in zip(parameters, gradients, strict=True)
        }
        given = {name: value for feature in training.features for name, value in feature.inputs().items()}
        outer = torch.func.functional_call(training.model, updated, (training.batch(1),), given)
        training.note("loss", outer)
        training.backward(outer)
        training.update()


class WithoutEarlyStop(Scenario):
    """The recompute runs to its end."""

    def train(self, training: Training) -> None:
        with set_checkpoint_early_stop(False):
            training.step(0)
            training.step(1)


class DrawsBetween(Scenario):
    """Random numbers are drawn between forward and backward, as by augmentation of the next batch."""

    def train(self, training: Training) -> None:
        for number in range(2):
            loss = training.forward(number)
            training.note("drawn", functional.dropout(torch.ones(4)))
            training.backward(loss)
            training.update()


class LargerBatch(Scenario):
    """Batches of other sizes follow one another."""

    def train(self, training: Training) -> None:
        for number, rows in enumerate((2, 1, 3)):
            values = torch.cat([training.batch(number), training.batch(number + 1)])[:rows]
            training.backward(training.forward(values=values))
            training.update()
