"""The figures of a step as text, and the known remedies that they call for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ckpt_surgery.planning.allocations import AllocationKind
from ckpt_surgery.planning.figures import Holder, StepFigures
from ckpt_surgery.text import aligned, percent, plural, size, text_table

LEAST_SHARE = 0.1
"""A remedy is named if it addresses at least this share of the peak."""
_LOSS_OPERATORS = frozenset({"aten._log_softmax", "aten._log_softmax_backward_data", "aten.nll_loss_backward"})
_MOST_HOLDERS = 8
_MOST_LINES = 40
_MLP_NAMES = frozenset({"mlp", "feed_forward", "ffn"})


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

    def sentence(self, step: StepFigures) -> str:
        """Write the hint as a sentence about this step."""
        return f"{size(self.bytes)}, {percent(self.bytes / step.peak_bytes)} of the peak: {_ADVICE[self.remedy]}."

    @classmethod
    def of(cls, step: StepFigures) -> tuple[Hint, ...]:
        """List the remedies for at least a tenth of the peak, the largest first."""
        at_peak = [holder for holder in step.peak.holders if not holder.gradient]
        all_checkpointed = 0 < step.blocks == step.checkpointed
        weights = [h for h in at_peak if h.operator == "aten._softmax" and len(h.shape) >= 3]  # of attention
        sums = {
            Remedy.FUSED_LOSS: sum(h.bytes for h in at_peak if h.operator in _LOSS_OPERATORS and not h.is_repeated),
            Remedy.SDPA: sum(h.bytes for h in weights if h.shape[-1] == h.shape[-2] > 1),
            Remedy.CHECKPOINT: sum(h.bytes for h in at_peak if h in step.holders and h.is_repeated),
            Remedy.TILE_MLP: sum(h.bytes for h in at_peak if _MLP_NAMES & set(h.module.split("."))),
            Remedy.LORA: step.optimizer_bytes + step.peak.by_kind.get(AllocationKind.GRADIENT, 0),
            Remedy.FOUR_BITS: step.frozen_bytes,
        }
        if step.adapted:
            del sums[Remedy.LORA]
        if step.blocks == 0 or all_checkpointed:
            del sums[Remedy.CHECKPOINT]
        if not all_checkpointed:
            del sums[Remedy.TILE_MLP]
        hints = [cls(remedy, held) for remedy, held in sums.items() if held and held >= LEAST_SHARE * step.peak_bytes]
        return tuple(sorted(hints, key=lambda hint: -hint.bytes))


_ADVICE = {
    Remedy.FUSED_LOSS: "the loss over the vocabulary; `ckpt_surgery.distributed.fuse_loss` avoids it",
    Remedy.CHECKPOINT: "kept in blocks that are not checkpointed; `ckpt_surgery.wrap_blocks` recomputes them",
    Remedy.SDPA: 'attention weights; `attn_implementation="sdpa"` keeps none',
    Remedy.TILE_MLP: "inside MLPs; `ckpt_surgery.distributed.tile_mlp` runs them on a part of the tokens at a time",
    Remedy.LORA: "gradients and the state of the optimizer; adapters (`--lora 16`) have almost none",
    Remedy.FOUR_BITS: "frozen weights of linear layers; `--load-in-4bit` holds them in about a quarter",
}


def explanation_lines(step: StepFigures) -> list[str]:
    """Format a report of at most 40 lines: with fewer holders if names are so long that each takes several lines."""
    headings = ("bytes", "share", "count", "module", "made by; kept by", "tensor")
    said, lines = notes(step), list[str]()
    for most in range(min(_MOST_HOLDERS, len(step.holders)), -1, -1):
        lines = [f"A step of {step.model}", *aligned(facts_of(step))]
        if most:
            shown = holder_rows(step.holders[:most], step)
            rows = [(*row[:4], "; ".join(filter(None, row[4:6])), row[6]) for row in shown]
            lines += ["", "Kept for the backward:", *text_table(headings, rows, right="bytes")]
            if rest := step.holders[most:]:
                left = sum(holder.bytes for holder in rest)
                lines.append(f"  and {size(left)} in {plural(len(rest), 'smaller group')}")
        lines += ["", *said] if said else []
        if len(lines) <= _MOST_LINES:
            break
    return lines


def facts_of(step: StepFigures) -> list[tuple[str, str]]:
    """List the sums, with their names."""
    return [
        ("parameters", size(step.parameter_bytes)),
        ("buffers", size(step.buffer_bytes)),
        ("gradients", size(step.gradient_bytes)),
        ("optimizer", size(step.optimizer_bytes)),
        *beside_rows(step),
        ("kept for the backward", size(step.kept_bytes)),
        *([("of that by save", saved_words(step.saved))] if step.saved else []),
        ("peak", f"{size(step.peak_bytes)}, {step.peak.place}"),
        ("blocks checkpointed", f"{step.checkpointed} of {step.blocks}"),
        *([("least time", f"{step.seconds:.3g} s")] if step.seconds else []),
    ]


def beside_rows(step: StepFigures) -> list[tuple[str, str]]:
    """List what a CUDA device holds beside the model and the step, with names."""
    rows = [("inputs", step.input_bytes), ("workspace of cuBLAS", step.workspace_bytes)]
    return [(name, size(held)) for name, held in rows if held]


def saved_words(saved: Mapping[str, int]) -> str:
    """Say what is kept because of `save`: "attention 2.0 GiB, matmul 7.0 GiB"."""
    return ", ".join(f"{name} {size(held)}" for name, held in saved.items())


def holder_rows(holders: Sequence[Holder], step: StepFigures) -> list[tuple[str, ...]]:
    """List a row per holder: bytes, share of the kept ones, count, module, what made and keeps it, the tensor."""
    return [
        (
            size(holder.bytes),
            percent(holder.bytes / step.kept_bytes if step.kept_bytes else None),
            f"{holder.count:,}",
            holder.module or "(loss)",
            f"{holder.operator.removeprefix('aten.')} {holder.line}".strip(),
            f"{holder.keeper.removeprefix('aten.')} {holder.kept_at}".strip(),
            f"{holder.dtype} [{', '.join(map(str, holder.shape))}]",
        )
        for holder in holders
    ]


def notes(step: StepFigures) -> list[str]:
    """List the hints, and the assumptions behind the figures."""
    return [*(hint.sentence(step) for hint in Hint.of(step)), *caveats(step)]


def caveats(step: StepFigures) -> list[str]:
    """List the assumptions behind the figures."""
    said = []
    if step.drawn:
        operators = plural(step.drawn, "operator")
        said.append(f"{operators} read what weights decide and got random values: sizes may differ.")
    return [*said, *step.assumptions]
