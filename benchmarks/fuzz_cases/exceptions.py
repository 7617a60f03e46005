"""Training loops in which an error ends a pass, and healthy steps follow while its traceback lives."""

from __future__ import annotations

import sys
from typing import Any, ClassVar

from benchmarks.fuzz_cases.training import Scenario, Training
from ckpt_surgery.errors import SurgeryError

_HELD = ("last_type", "last_value", "last_traceback")
"""What an interactive Python keeps of the last error."""


class Interrupted(Exception):
    """Something does not come to its end."""


class _Interruption(Scenario):
    """Healthy steps, one that an error ends, and healthy steps."""

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
        """A step that an error ends, which comes once `armed`."""
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
    """Somebody presses Ctrl-C in a forward."""

    error = KeyboardInterrupt


class RecomputeInterrupted(_Interruption):
    """A part of a block raises in its recompute; without checkpointing that backward ends, and is dropped."""

    everywhere = False

    def interrupt(self, training: Training) -> None:
        loss = training.forward(20)
        self.armed = True
        training.backward(loss)


class RecomputeKeyboardInterrupt(RecomputeInterrupted):
    """Somebody presses Ctrl-C in a recompute."""

    error = KeyboardInterrupt


class BackwardInterrupted(_Interruption):
    """A hook on a gradient raises between the backwards of two blocks, and nothing in a recompute does."""

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
    """A forward raises, a backward of an earlier forward goes on while the error is held."""

    def interrupt(self, training: Training) -> None:
        self._earlier = training.forward(21)
        super().interrupt(training)

    def go_on(self, training: Training) -> None:
        training.backward(self._earlier)
        training.update()
        super().go_on(training)
