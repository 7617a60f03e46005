"""Decide from a step's figures alone which known remedies apply to it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ckpt_surgery.planning.allocations import AllocationKind
from ckpt_surgery.planning.figures import Holder, StepFigures

LEAST_SHARE = 0.1
"""A remedy is named if it addresses at least this share of the peak."""
_LOSS = frozenset({"aten._log_softmax", "aten._log_softmax_backward_data", "aten.nll_loss_backward"})
_MLP = frozenset({"mlp", "feed_forward", "ffn"})


class Remedy(StrEnum):
    """A change that would lower the peak."""

    FUSED_LOSS = "fuse_loss"
    CHECKPOINT = "wrap_blocks"
    SDPA = "sdpa"
    TILE_MLP = "tile_mlp"
    LORA = "--lora"
    FOUR_BITS = "--load-in-4bit"


@dataclass(frozen=True, slots=True)
class Hint:
    """A remedy, and the bytes at the peak that it addresses: it saves at most these."""

    remedy: Remedy
    bytes: int


def hints_of(step: StepFigures) -> tuple[Hint, ...]:
    """List the remedies for at least a tenth of the peak, the largest first."""
    at_peak = [holder for holder in step.peak.holders if not holder.gradient]
    all_checkpointed = 0 < step.blocks == step.checkpointed
    sums = {
        Remedy.FUSED_LOSS: sum(h.bytes for h in at_peak if h.operator in _LOSS and not _is_repeated(h)),
        Remedy.SDPA: sum(h.bytes for h in at_peak if _is_attention_matrix(h)),
        Remedy.CHECKPOINT: sum(h.bytes for h in at_peak if h in step.holders and _is_repeated(h)),
        Remedy.TILE_MLP: sum(h.bytes for h in at_peak if _MLP & set(h.module.split("."))),
        Remedy.LORA: step.optimizer_bytes + step.peak.by_kind.get(AllocationKind.GRADIENT, 0),
        Remedy.FOUR_BITS: step.frozen_bytes,
    }
    if step.adapted:
        del sums[Remedy.LORA]
    if step.blocks == 0 or all_checkpointed:
        del sums[Remedy.CHECKPOINT]
    if not all_checkpointed:
        del sums[Remedy.TILE_MLP]
    hints = [Hint(remedy, held) for remedy, held in sums.items() if held and held >= LEAST_SHARE * step.peak_bytes]
    return tuple(sorted(hints, key=lambda hint: -hint.bytes))


def _is_repeated(holder: Holder) -> bool:
    """Tell whether the holder's modules have numbers in their names, as blocks do."""
    return "*" in holder.module.split(".")


def _is_attention_matrix(holder: Holder) -> bool:
    square = len(holder.shape) >= 3 and holder.shape[-1] == holder.shape[-2] > 1
    return holder.operator == "aten._softmax" and square
