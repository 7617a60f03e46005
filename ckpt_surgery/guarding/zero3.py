"""DeepSpeed's ZeRO-3: the weights of a block that is run alone, gathered by DeepSpeed and kept so until it is done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

_USER = "ckpt_surgery"


@contextmanager
def whole_weights(block: nn.Module) -> Iterator[None]:
    """Inside, the parameters of a block that are parted among ranks are whole. Every rank has to come here.

    DeepSpeed parts those of a module again as soon as that has run, unless another one uses them: they are marked as
    used, so that a backward finds them whole too.
    """
    parted: list[Any] = [parameter for parameter in block.parameters() if hasattr(parameter, "ds_id")]
    if not parted:
        yield
        return
    from deepspeed import zero

    users = [parameter.ds_active_sub_modules for parameter in parted]
    with zero.GatheredParameters(parted):
        for each in users:
            each.add(_USER)
        try:
            yield
        finally:
            for each in users:
                each.discard(_USER)
