"""Tiny models with different batches on each rank, trained with and without DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ckpt_surgery.measure.block_entries import EntryCounter
from ckpt_surgery.measure.loss import loss_of
from ckpt_surgery.runtime.blocks.discovery import find_blocks
from ckpt_surgery.tiny import model_classes, tiny_model
from tests.rank_cases import whole

SIZE = 2
STEPS = 2
CLOSE = 1e-5
"""How far float32 gradients may lie apart, relative to the step's largest, where only the order of sums differs."""

Batch = dict[str, Any]
Gradients = dict[str, Tensor | None]


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A model and its training data: for each step the batches of the ranks."""

    model: nn.Module
    steps: Sequence[Sequence[Batch]]


def released(name: str) -> Run:
    """Build a tiny model of transformers, and another batch for each rank."""
    tiny = tiny_model(model_classes()[name].load())
    return Run(tiny.model.train(), [rolled(tiny.inputs)] * STEPS)


def rolled(inputs: Mapping[str, Any]) -> list[Batch]:
    """Shift the same words differently on each rank."""
    return [{**inputs, "input_ids": inputs["input_ids"].roll(rank, dims=1)} for rank in range(SIZE)]


def train(run: Run, prepare: Callable[[nn.Module], nn.Module]) -> dict[str, Any]:
    """Train for the steps of `run`; return the error, or the gradients' distance from the mean over the batches.

    `difference` is the largest of all steps; `wrong` are the numbers of wrong gradients, by step. `recomputed` are the
    numbers of blocks that the steps entered in the backward.
    """
    model = run.model
    expected = [mean_gradients(model, batches) for batches in run.steps]
    blocks = {block.name: block.module for block in find_blocks(model)}
    result: dict[str, Any] = {"error": "", "difference": 0.0, "gradients": 0, "wrong": [], "recomputed": []}
    outer = prepare(model)
    try:
        for batches, mean in zip(run.steps, expected, strict=True):
            outer.zero_grad()
            with EntryCounter(model, blocks) as counter:
                torch.manual_seed(0)
                loss = loss_of(outer(**batches[dist.get_rank()]))
                counter.start_backward()
                loss.backward()  # type: ignore[no-untyped-call]
            actual = gradients(model)
            result["recomputed"].append(sum(entries.backward > 0 for entries in counter.entries().values()))
            scale = max(float(gradient.abs().max()) for gradient in mean.values() if gradient is not None)
            differences = [apart(mean[name], actual[name]) / scale for name in mean]
            result["wrong"].append(sum(difference > CLOSE for difference in differences))
            result["difference"] = max(result["difference"], *differences)
            result["gradients"] = sum(gradient is not None for gradient in actual.values())
    except (RuntimeError, ValueError) as error:
        result["error"] = " ".join(str(error).split())
    return result


def mean_gradients(model: nn.Module, batches: Sequence[Batch]) -> Gradients:
    """Train without checkpointing and wrapper, batch after batch; each draws the same random numbers."""
    total: Gradients = {}
    for batch in batches:
        model.zero_grad()
        torch.manual_seed(0)
        loss_of(model(**batch)).backward()  # type: ignore[no-untyped-call]
        for name, gradient in gradients(model).items():
            before = total.get(name)
            share = None if gradient is None else gradient.detach().clone() / len(batches)
            total[name] = share if before is None else before + share if share is not None else before
    model.zero_grad()
    return total


def gradients(model: nn.Module) -> Gradients:
    """Return gradients by name, gathered if the model is sharded."""
    return {name: whole(parameter.grad) for name, parameter in model.named_parameters()}


def apart(ours: Tensor | None, theirs: Tensor | None) -> float:
    """Return the largest absolute difference; infinite where only one has a gradient other than zero."""
    if ours is None or theirs is None:
        return 0.0 if _zero(ours) and _zero(theirs) else float("inf")
    return float((ours - theirs).abs().max())


def _zero(gradient: Tensor | None) -> bool:
    return gradient is None or not bool(gradient.any())
