"""The optimizers whose state `explain` and `plan` can count. Imports no torch."""

from __future__ import annotations

from enum import StrEnum


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
