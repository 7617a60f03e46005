"""Run the step of a script's optimizer on shapes, to count what it takes."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ckpt_surgery.measure.meter import LiveBytes
from ckpt_surgery.planning.shapes import ShapesOnly
from ckpt_surgery.planning.states import state_bytes
from ckpt_surgery.planning.training import OPTIMIZER_CLASSES, Optimizer


@dataclass(frozen=True, slots=True)
class OptimizerCost:
    """The bytes that an optimizer holds between steps, and those that its step takes beside them.

    `is_exact` tells whether its step ran on shapes; otherwise `step_bytes` is 0.
    """

    name: str
    state_bytes: int
    step_bytes: int = 0
    is_exact: bool = True

    @classmethod
    def of(
        cls, optimizer: torch.optim.Optimizer | None, model: nn.Module, shapes: ShapesOnly, copies: Mapping[int, Any]
    ) -> OptimizerCost:
        """Return what a model's optimizer costs; without an optimizer, the state of AdamW.

        `model` holds no data, and `copies` has its parts by the ids of the originals. The optimizer is not changed.
        """
        if optimizer is None:
            return cls("AdamW, assumed", state_bytes(model.parameters(), Optimizer.ADAMW), is_exact=False)
        name = type(optimizer).__name__
        for foreach in (True, False):
            try:
                with shapes:
                    return cls(name, *_stepped(optimizer, copies, foreach=foreach))
            except Exception:  # whatever an optimizer raises without data
                continue
            finally:
                for parameter in model.parameters():
                    parameter.grad = None
        known = OPTIMIZER_CLASSES.get(name.lower())  # as it does not run on shapes
        held = state_bytes(model.parameters(), known or Optimizer.ADAMW)
        return cls(name if known else f"{name}, taken for AdamW", held, is_exact=False)


def _stepped(optimizer: torch.optim.Optimizer, copies: Mapping[int, Any], *, foreach: bool) -> tuple[int, int]:
    """Return the bytes that are alive after a step, and the most beside these during the next one."""
    made = copy.copy(optimizer)
    made.state = defaultdict(dict)
    made.param_groups = []
    for group in optimizer.param_groups:
        copied = {**group, "params": [copies[id(each)] for each in group["params"] if id(each) in copies]}
        if group.get("foreach", True) is None and not group.get("fused"):  # torch's default: lists of tensors, on CUDA
            plain = all(each.is_cuda and type(each) in (Tensor, nn.Parameter) for each in group["params"])
            copied["foreach"] = foreach and plain and not group.get("differentiable")
        made.param_groups.append(copied)
    for parameter in (parameter for group in made.param_groups for parameter in group["params"]):
        parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
    with LiveBytes() as meter:
        type(made).step(made)
        state = meter.most_bytes = meter.left_bytes()
        type(made).step(made)
    return state, meter.most_bytes - state
