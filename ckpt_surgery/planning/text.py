"""The figures of a step as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ckpt_surgery.planning.figures import Holder, Peak, StepFigures
from ckpt_surgery.planning.hints import Hint, Remedy, hints_of
from ckpt_surgery.text import aligned, percent, plural, size, text_table

_MOST_HOLDERS = 8
_MOST_LINES = 40
_ADVICE = {
    Remedy.FUSED_LOSS: "the loss over the vocabulary; `ckpt_surgery.distributed.fuse_loss` avoids it",
    Remedy.CHECKPOINT: "kept in blocks that are not checkpointed; `ckpt_surgery.wrap_blocks` recomputes them",
    Remedy.SDPA: 'attention weights; `attn_implementation="sdpa"` keeps none',
    Remedy.TILE_MLP: "inside MLPs; `ckpt_surgery.distributed.tile_mlp` runs them on a part of the tokens at a time",
    Remedy.LORA: "gradients and the state of the optimizer; adapters (`--lora 16`) have almost none",
    Remedy.FOUR_BITS: "frozen weights of linear layers; `--load-in-4bit` holds them in about a quarter",
}


def explanation_lines(step: StepFigures) -> list[str]:
    """Format a report of at most 40 lines."""
    reports = (_report(step, rows) for rows in range(_MOST_HOLDERS, 0, -1))
    return next((lines for lines in reports if len(lines) <= _MOST_LINES), _report(step, 0))


def _report(step: StepFigures, most: int) -> list[str]:
    """Format the report with at most so many holders; long names take several lines each."""
    lines = [f"A step of {step.model}", *aligned(facts_of(step))]
    if step.holders and most:
        rows = [(*row[:4], _joined(row[4:6]), row[6]) for row in holder_rows(step.holders[:most], step)]
        headings = ("bytes", "share", "count", "module", "made by; kept by", "tensor")
        lines += ["", "Kept for the backward:", *text_table(headings, rows, right="bytes")]
        if rest := step.holders[most:]:
            left = sum(holder.bytes for holder in rest)
            lines.append(f"  and {size(left)} in {plural(len(rest), 'smaller group')}")
    return lines + ([""] if (said := notes(step)) else []) + said


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
        ("peak", f"{size(step.peak_bytes)}, {peak_place(step.peak)}"),
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


def peak_place(peak: Peak) -> str:
    """Say where the peak is: "in the backward of model.layers.31.mlp, modeling_llama.py:164"."""
    where = f"in the {peak.phase} of {peak.module or 'the loss'}"
    return f"{where}, {peak.line}" if peak.line else where


def holder_rows(holders: Sequence[Holder], step: StepFigures) -> list[tuple[str, ...]]:
    """List a row per holder: bytes, share of the kept ones, count, module, what made and keeps it, the tensor."""
    return [
        (
            size(holder.bytes),
            percent(holder.bytes / step.kept_bytes if step.kept_bytes else None),
            f"{holder.count:,}",
            holder.module or "(loss)",
            _call(holder.operator, holder.line),
            _call(holder.keeper, holder.kept_at),
            f"{holder.dtype} [{', '.join(map(str, holder.shape))}]",
        )
        for holder in holders
    ]


def notes(step: StepFigures) -> list[str]:
    """List the hints, and the assumptions behind the figures."""
    return [*(hint_line(hint, step) for hint in hints_of(step)), *caveats(step)]


def caveats(step: StepFigures) -> list[str]:
    """List the assumptions behind the figures."""
    said = []
    if step.drawn:
        operators = plural(step.drawn, "operator")
        said.append(f"{operators} read what weights decide and got random values: sizes may differ.")
    return [*said, *step.assumptions]


def hint_line(hint: Hint, step: StepFigures) -> str:
    """Write a hint as a sentence."""
    return f"{size(hint.bytes)}, {percent(hint.bytes / step.peak_bytes)} of the peak: {_ADVICE[hint.remedy]}."


def _call(operator: str, line: str) -> str:
    return f"{operator.removeprefix('aten.')} {line}".strip()


def _joined(cells: Sequence[str]) -> str:
    return "; ".join(filter(None, cells))
