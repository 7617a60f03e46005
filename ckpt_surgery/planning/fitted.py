"""`Fitted`: what `fit` has chosen for a model, as figures and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ckpt_surgery.planning.answer import LeverPeak
from ckpt_surgery.planning.choices import PlanChoice
from ckpt_surgery.planning.devices import Device
from ckpt_surgery.planning.explanation import Explanation
from ckpt_surgery.planning.script_optimizer import OptimizerCost
from ckpt_surgery.text import size


@dataclass(frozen=True, slots=True)
class Room:
    """The memory for steps: `total` bytes, of which the share `margin` stays free and `others` are held anyway.

    `others` excludes parameters, buffers, gradients and the optimizer's state. The `device` whose time is estimated is
    `assumed` if nobody named it and no figures are known of the actual one.
    """

    total: int
    margin: float
    others: int
    device: Device
    assumed: bool = False

    @property
    def ceiling(self) -> int:
        """The bytes that steps may take."""
        return int(self.total * (1 - self.margin))

    def __str__(self) -> str:
        left = f", {size(self.total)} less a margin of {100 * self.margin:g} %" if self.margin else ""
        return f"the budget is {size(self.ceiling)}{left}"


@dataclass(frozen=True, slots=True)
class Fitted:
    """The choice for a model, and the predicted costs of its steps. Sizes are bytes.

    Attributes:
        model: the class of the model.
        batch: the size of the batch, in words.
        choice: what is done to the model.
        explanation: of the forward and backward with it.
        optimizer: what the optimizer costs.
        room: the memory for its steps.
        held_bytes: the gradients held before the step, when gradients are accumulated.
        step_seconds: the least time of a step in which nothing is done.
        extra_seconds: the time that the choice adds.
        levers: if nothing fits, what would help, the most effective first.
        largest: if nothing fits, the "batch" and "length" that do; 0 for none.
    """

    model: str
    batch: str
    choice: PlanChoice
    explanation: Explanation
    optimizer: OptimizerCost
    room: Room
    held_bytes: int
    step_seconds: float
    extra_seconds: float
    levers: tuple[LeverPeak, ...] = ()
    largest: Mapping[str, int] | None = None

    @property
    def peak_bytes(self) -> int:
        """The most bytes alive at once: in the forward and backward, or in the optimizer's step."""
        explained = self.explanation
        gradients = max(explained.gradient_bytes, self.held_bytes)
        update = explained.parameter_bytes + explained.buffer_bytes + gradients + self.optimizer.step_bytes
        return max(explained.peak_bytes + self.held_bytes, update) + self._beside_step

    def peak_of_larger(self, ratio: float) -> int:
        """Estimate the peak of a batch larger by this ratio: everything but states grows with it."""
        explained = self.explanation
        weights = explained.parameter_bytes + explained.buffer_bytes
        return weights + self.held_bytes + self._beside_step + int((explained.peak_bytes - weights) * ratio)

    @property
    def fits(self) -> bool:
        """Whether the peak is within the budget."""
        return self.peak_bytes <= self.room.ceiling

    @property
    def _beside_step(self) -> int:
        return self.optimizer.state_bytes + self.room.others

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self, *, dry_run: bool = False) -> Iterator[str]:
        """Yield lines on what was done, its cost and the predicted peak, and on what would help if nothing fits."""
        done = self.choice.name if self.choice.is_needed else "nothing has to be done"
        if self.fits:
            yield f"{self.model}, {self.batch}: {done}"
        else:
            yield f"{self.model}, {self.batch}: nothing fits into {size(self.room.ceiling)}. {self._what_fits()}"
            yield f"{'the smallest way is' if dry_run else 'it trains with the smallest way'}: {done}"
        extra = 100 * self.extra_seconds / self.step_seconds if self.step_seconds else 0.0
        device = self.room.device.name
        whose = f"seconds are those of an {device}: name your card with --device"
        yield (
            f"cost: {self.extra_seconds:.3g} s more than the {self.step_seconds:.3g} s of a step without "
            f"({extra:.1f} %); {whose if self.room.assumed else f'by the figures of {device}'}"
        )
        explained = self.explanation
        over = "" if self.fits else f", {size(self.peak_bytes - self.room.ceiling)} too much"
        yield f"predicted peak: {size(self.peak_bytes)}{over}; {self.room}"
        yield (
            f"it is made of: weights {size(explained.parameter_bytes + explained.buffer_bytes)}, gradients "
            f"{size(max(explained.gradient_bytes, self.held_bytes))}, optimizer {size(self.optimizer.state_bytes)} "
            f"({self.optimizer.name}), kept for the backward {size(explained.kept_bytes)}"
        )
        for lever in self.levers:
            yield f"{self._of_lever(lever)}: {lever.in_scripts}"

    def _what_fits(self) -> str:
        """Name the largest batch and length that fit, and what lowers the peak most."""
        fitting = [f"a {name} of {count}" for name, count in (self.largest or {}).items() if count]
        said = [f"What fits: {' or '.join(fitting)}."] if fitting else []
        if self.largest and not fitting:
            said.append(f"No smaller {' or '.join(self.largest)} does.")
        if self.levers:
            said.append(f"Most effect: {self._of_lever(self.levers[0])}: {self.levers[0].in_scripts}")
        return " ".join(said)

    def _of_lever(self, lever: LeverPeak) -> str:
        fits = "and fits" if lever.peak_bytes <= self.room.ceiling else "still too much"
        saved = size(self.peak_bytes - lever.peak_bytes)
        return f"with {lever.name} it takes {size(lever.peak_bytes)}, {saved} less, {fits}"

    def to_yaml(self) -> str:
        """Return the calls with their arguments, and the predictions, in the format of `plan`."""
        return self.choice.to_yaml(
            self.model,
            self.room.ceiling,
            self.room.device.name,
            kept_bytes=self.explanation.kept_bytes,
            peak_bytes=self.peak_bytes,
            extra_seconds=self.extra_seconds,
            step_seconds=self.step_seconds,
        )
