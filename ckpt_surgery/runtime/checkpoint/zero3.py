"""Gather the weights of a block that DeepSpeed's ZeRO-3 partitions among ranks, while the block runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from ckpt_surgery.runtime.tools.tensors import is_parameter

OF_ZERO3 = {
    *("_external_params", "_original_parameters", "applied_pre_backward_ref_cnt", "ds_grads_remaining", "ds_id"),
    *("ds_recompute_parameters", "post_bwd_fn", "pre_bwd_fn"),
}
"""The attributes in which DeepSpeed 0.19 notes what it has gathered for a module, also in a recompute."""
_USER = "ckpt_surgery"
"""The name under which DeepSpeed knows who uses a parameter."""


@contextmanager
def whole_weights(block: nn.Module) -> Iterator[None]:
    """Gather the parameters of a block that ZeRO-3 partitions, inside the `with`. Every rank has to call this.

    DeepSpeed partitions a module's parameters again as soon as it has run, unless another module uses them: here they
    are marked as used, so that a backward also finds them whole. Those that are whole already are in use, and stay so.
    """
    partitioned: list[Any] = [parameter for parameter in block.parameters() if hasattr(parameter, "ds_id")]
    if not partitioned:
        yield
        return
    from deepspeed import zero

    empty = [parameter for parameter in partitioned if parameter.ds_status.name != "AVAILABLE"]
    with zero.GatheredParameters(empty), ExitStack() as stack:
        for users in [parameter.ds_active_sub_modules for parameter in partitioned]:
            stack.callback(users.intersection_update, set(users))  # DeepSpeed 0.19.3 adds some in a backward
            users.add(_USER)
        yield


def kept_whole(tensor: Tensor) -> Tensor:
    """Return what to save for a tensor in a recompute: for a weight, a view that keeps its present values.

    torch's non-reentrant checkpointing keeps the very tensor of what requires no gradient. DeepSpeed's ZeRO-3 empties
    a weight as soon as its module has run, so that torch would find another shape than in the forward, and raise.
    """
    return tensor.view_as(tensor) if is_parameter(tensor) else tensor
