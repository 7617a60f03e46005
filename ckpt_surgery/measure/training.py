"""Run a few training steps of a model in any mode and precision, and compare them with steps without checkpointing.

Only gradients, losses and bytes alive are recorded. A fully instrumented step is in `step`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ckpt_surgery.measure.arguments import call_arguments
from ckpt_surgery.measure.casting import cast_to, in_precision
from ckpt_surgery.measure.compare import Floor
from ckpt_surgery.measure.generators import seed_all
from ckpt_surgery.measure.kinds import FaultKind, LoopKind, Precision, SkipKind
from ckpt_surgery.measure.loss import loss_of, scalar
from ckpt_surgery.measure.meter import LiveBytes, PerturbedRounding
from ckpt_surgery.measure.noise import NoisyReference, why_no_reference
from ckpt_surgery.measure.record import RunRecord, StepError, StepPart
from ckpt_surgery.measure.results import Detail, Fault, Level, LevelVerdict, Mode, Skip
from ckpt_surgery.measure.setup import Setup
from ckpt_surgery.measure.step import gradient_copies, gradients_of, own_copies, prepared


@dataclass(slots=True)
class Training:
    """A training of a few steps that runs or has run; `steps` are the gradients and losses of each backward."""

    setup: Setup
    precision: Precision | None = None
    meter: LiveBytes | None = None
    steps: list[RunRecord] = field(default_factory=list)
    alive: list[int] = field(default_factory=list)
    """The bytes alive after each step, without gradients and copies of them, if there is a meter."""
    kept: list[int] = field(default_factory=list)
    """The same before each backward; 0 if the meter was not on."""
    part: StepPart = StepPart.FORWARD
    forwards: int = 0

    @property
    def refused(self) -> str | None:
        """The sentence in which a surgery refused a call; None if none did."""
        return next((step.refused for step in self.steps if step.refused is not None), None)

    @property
    def growth(self) -> int:
        """The bytes that the last step added to those alive."""
        return self.alive[-1] - self.alive[-2] if len(self.alive) > 1 else 0

    def forward(self, *, inputs_require_gradient: bool = False) -> Tensor:
        """Return the loss of the next forward. Each has new random numbers, every second one reversed samples."""
        self.part = StepPart.FORWARD
        seed_all(self.setup.seed + self.forwards)
        given = reversed_samples(self.setup.inputs) if self.forwards % 2 else self.setup.inputs
        self.forwards += 1
        inputs = {name: cast_to(value, self.precision) for name, value in given.items()}
        for name, value in inputs.items() if inputs_require_gradient else ():
            if isinstance(value, Tensor) and value.is_floating_point():
                inputs[name] = value.detach().requires_grad_()  # the forward works on copies
        model, loss = self.setup.model, self.setup.loss or loss_of
        given_copies, named = call_arguments(own_copies(model, inputs))
        with torch.enable_grad():
            return scalar(loss(model(*given_copies, **named)))

    def backward(self, loss: Tensor, *, retain: bool = False) -> None:
        """Run the backward, and record the gradients."""
        self.part = StepPart.BACKWARD
        if self.meter is not None:
            self.kept.append(self._alive(self.meter))
        seed_all(self.setup.seed + 1)  # a recompute must not depend on the state there
        loss.backward(retain_graph=retain)  # type: ignore[no-untyped-call]
        gradients = gradient_copies(self.setup.model)
        self.steps.append(RunRecord(float(loss.detach()), gradients))

    def metered(self) -> AbstractContextManager[object]:
        """Count the bytes allocated inside the `with`, if there is a meter: it is slow, and few steps need it."""
        return self.meter or nullcontext()

    def measure(self) -> None:
        """Record what is alive between two steps, if there is a meter."""
        if self.meter is not None:
            self.alive.append(self._alive(self.meter))

    def _alive(self, meter: LiveBytes) -> int:
        copies = (copy for step in self.steps for copy in step.gradients.values() if copy is not None)
        return meter.left_bytes([*gradients_of(self.setup.model), *copies])

    def evaluate(self) -> None:
        """Run a forward in evaluation mode, as loops do between steps, and ignore its errors."""
        model = self.setup.model
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        given, named = call_arguments(own_copies(model, self.setup.inputs))
        with suppress(Exception), torch.no_grad():
            model(*given, **named)
        for module, training in modes:
            module.training = training

    @classmethod
    def run(
        cls,
        setup: Setup,
        mode: Mode | None,
        steps: Callable[[Training], None],
        *,
        precision: Precision | None = None,
        metered: bool = False,
        rounding_seed: int = 0,
    ) -> Training:
        """Run `steps` on the model of `setup`, and restore it. An error that ends them is in the last record."""
        training = cls(setup, precision, LiveBytes() if metered and not rounding_seed else None)
        rounding = PerturbedRounding(rounding_seed) if rounding_seed else nullcontext()
        try:
            with prepared(setup.model, mode, setup.switch), in_precision(setup.model, precision), rounding:
                steps(training)
        except Exception as error:
            training.steps.append(RunRecord(float("nan"), error=StepError.of(training.part, error)))
        return training

    def one_step(self) -> None:
        """Run one forward and one backward."""
        self.backward(self.forward())


def reversed_samples(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the inputs with their samples in reverse order, if all tensors have equally many rows."""
    tensors = {name: value for name, value in inputs.items() if isinstance(value, Tensor) and value.dim()}
    rows = {tensor.shape[0] for tensor in tensors.values()}
    return {**inputs, **{name: tensor.flip(0) for name, tensor in tensors.items()}} if len(rows) == 1 else inputs


def are_samples_alike(inputs: Mapping[str, Any]) -> bool:
    """Tell whether reversing the samples leaves the inputs as they are, as with a single sample."""
    try:
        other = reversed_samples(inputs)
        return all(torch.equal(other[n], value) for n, value in inputs.items() if isinstance(value, Tensor))
    except RuntimeError:  # some tensors cannot be flipped or compared: the loop itself will report that
        return False


_TRAINING_KINDS: Mapping[Level, tuple[FaultKind, SkipKind, SkipKind]] = {
    "loop": (FaultKind.LOOP_DIFFERS, SkipKind.LOOP_NOT_RUN, SkipKind.LOOP_REFUSED),
    "precision": (FaultKind.PRECISION_DIFFERS, SkipKind.PRECISION_NOT_RUN, SkipKind.PRECISION_REFUSED),
}
"""By level: the fault of a training that differs, and the skips of one that fails anyway or is refused."""


class TrainingJudge:
    """The judge of one kind of training, which `train` runs in a mode, or without (None), and with a rounding seed.

    Faults and skips name its `kind`. Differences up to `tolerance` do not count, as in `verify`. `likely` and `eps`
    are as in `NoisyReference`.
    """

    def __init__(
        self,
        level: Level,
        kind: LoopKind | Precision,
        train: Callable[[Mode | None, int], Training],
        tolerance: float | None = None,
        likely: Callable[[], Mapping[str, Floor]] | None = None,
        eps: float = 0.0,
    ) -> None:
        self._level: Level = level
        self._train = train
        self._details: dict[str, Detail] = {level: str(kind)}
        self._differs, self._not_run, self._refused = _TRAINING_KINDS[level]
        self._reference = NoisyReference(
            lambda seed: train(None, seed).steps, tolerance=tolerance, likely=likely, eps=eps
        )

    def judge(self, mode: Mode) -> Training | Fault | Skip:
        """Return the fault in this mode, a skip if it cannot be judged, or the training if it computes the same."""
        if problem := why_no_reference(self._reference.records):
            return self._skip(self._not_run, problem)
        training = self._train(mode, 0)
        if training.refused is not None:
            return self._skip(self._refused, training.refused)
        fault = self._reference.first_fault(training.steps)
        if fault and self._reference.is_noisy:
            training = self._train(mode, 0)
            fault = self._reference.first_fault(training.steps)
        if fault:
            return Fault(self._differs, fault.subjects, self._details, fault.explanation, underlying=fault)
        return training

    def _skip(self, kind: SkipKind, error: str) -> Skip:
        return Skip((self._level,), kind, {**self._details, "error": error})


def level_verdict(results: Sequence[Training | Fault | Skip]) -> LevelVerdict:
    """Return the verdict of a level, which is measured if any of its trainings could be run."""
    faults = tuple(result for result in results if isinstance(result, Fault))
    skips = tuple(result for result in results if isinstance(result, Skip))
    return LevelVerdict(faults, skips, measured=len(skips) < len(results))
