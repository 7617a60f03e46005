"""How a model is trained: the optimizer, the ranks that share the model, and the device. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ckpt_surgery.errors import PlanningError
from ckpt_surgery.planning.devices import Device


class Optimizer(StrEnum):
    """Optimizers whose state is counted.

    Sources: torch.optim for AdamW, SGD and Adafactor (the state is made with `zeros_like` of each parameter);
    bitsandbytes, `Optimizer2State`, for the 8-bit ones: a byte for each element of both states, a float32 scale for
    each 256 of them, and float32 states for parameters of fewer than 4,096 elements. Paged states live in host memory.
    """

    NONE = "none"
    SGD = "sgd"
    SGD_MOMENTUM = "sgd-momentum"
    ADAMW = "adamw"
    ADAMW_8BIT = "adamw-8bit"
    PAGED_ADAMW_8BIT = "paged-adamw-8bit"
    ADAFACTOR = "adafactor"


OPTIMIZER_CLASSES = {
    "adamw": Optimizer.ADAMW,
    "adam": Optimizer.ADAMW,
    "adamw8bit": Optimizer.ADAMW_8BIT,
    "adam8bit": Optimizer.ADAMW_8BIT,
    "pagedadamw8bit": Optimizer.PAGED_ADAMW_8BIT,
    "pagedadam8bit": Optimizer.PAGED_ADAMW_8BIT,
    "adafactor": Optimizer.ADAFACTOR,
}
"""Optimizers by class name in lower case."""


class Sharding(StrEnum):
    """The states that ranks divide: FSDP2 and ZeRO-3 all, ZeRO-2 gradients and optimizer, ZeRO-1 the optimizer."""

    FSDP = "fsdp"
    ZERO_1 = "zero1"
    ZERO_2 = "zero2"
    ZERO_3 = "zero3"


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """The optimizer whose state is counted, the ranks that divide a model, and the device whose time is estimated.

    `sharding` is None on one rank, `device` if no time is asked for.
    """

    optimizer: Optimizer = Optimizer.NONE
    ranks: int = 1
    sharding: Sharding | None = None
    device: Device | None = None

    @classmethod
    def of(cls, optimizer: str, ranks: int, sharding: str | None, device: str | None = None) -> TrainingSetup:
        """Return the setup of these options. Raises PlanningError if one is invalid, or they do not fit together."""
        if optimizer not in tuple(Optimizer):
            raise PlanningError(
                f"no state is known of the optimizer {optimizer!r}: give one of {', '.join(Optimizer)}"
            )
        if type(ranks) is not int or ranks < 1:
            raise PlanningError(f"ranks is {ranks!r}: give a whole number of 1 or more")
        if sharding is not None and sharding not in set(Sharding):
            raise PlanningError(f"no sharding is called {sharding!r}: give one of {', '.join(Sharding)}")
        if ranks > 1 and sharding is None:
            raise PlanningError(
                f"{ranks} ranks share nothing by themselves: say what they shard: {', '.join(Sharding)}"
            )
        if ranks == 1 and sharding is not None:
            raise PlanningError(f"{sharding} divides a model among ranks: give 2 ranks or more")
        shared = None if sharding is None else Sharding(sharding)
        return cls(Optimizer(optimizer), ranks, shared, None if device is None else Device.of(device))


ALONE = TrainingSetup()
"""One device, no optimizer, no time."""
