"""Steps of one model on a device: the seconds of each, the peak, the loss and the norm of all gradients."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks.device import Device
from benchmarks.figures import Figure, Target

if TYPE_CHECKING:
    from torch import Tensor, nn

GIGABYTE = 10**9
"""The unit of memory here."""


def own_switch(model: Any, end: str) -> Any:
    """The method of transformers that switches checkpointing on (`enable`) or off (`disable`), by its name."""
    new, old = f"activation_checkpointing_{end}", f"gradient_checkpointing_{end}"
    return getattr(model, new if hasattr(model, new) else old)


@dataclass(frozen=True, slots=True)
class Steps:
    """Timed steps: the seconds of each, the peak in bytes, and the loss and the norm of all gradients of the last."""

    seconds: tuple[float, ...]
    peak: int
    loss: float
    norm: float

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> Steps:
        """The steps that `to_dict` made plain data of."""
        return cls(tuple(kept["seconds"]), kept["peak"], kept["loss"], kept["norm"])

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return asdict(self)

    @property
    def median(self) -> float:
        """The seconds of the middle one."""
        return statistics.median(self.seconds)


def timed_steps(model: nn.Module, loss_of: Callable[[], Tensor], device: Device, *, warm_up: int, steps: int) -> Steps:
    """Run and time steps of `model`: forward, backward, no optimizer. The peak is that of the timed ones."""
    import torch

    def step() -> tuple[float, Tensor]:
        model.zero_grad(set_to_none=True)
        device.synchronize()
        start = perf_counter()
        loss = loss_of()
        torch.autograd.backward(loss)
        device.synchronize()
        return perf_counter() - start, loss.detach()

    for _ in range(warm_up):  # kernels are chosen and loaded, memory is taken and pinned
        step()
    device.reset_peak()
    taken = [step() for _ in range(steps)]
    peak = device.peak()
    squares = [value.grad.float().square().sum() for value in model.parameters() if value.grad is not None]
    norm = float(torch.stack(squares).sum().sqrt())
    return Steps(tuple(seconds for seconds, _ in taken), peak, float(taken[-1][1]), norm)


def seconds_and_peak(where: str, way: str, steps: Steps) -> Sequence[Figure]:
    """Those of one way to run steps."""
    return (
        Figure(f"{where}: a step, {way}", steps.seconds, "s"),
        Figure(f"{where}: peak, {way}", (steps.peak / GIGABYTE,), "GB"),
    )


def ratio(name: str, over: float, under: float, target: Target | None = None) -> Figure:
    """How many times `under` is `over`."""
    return Figure(name, (over / under,), "x", target)
