"""What `wrap_blocks` does to one model: which blocks it finds, their gradients, what a step keeps, and the undo."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from benchmarks.stacks.case import Case
from benchmarks.stacks.report import Memory, Row
from ckpt_surgery import SurgeryError, VerifyError, verify, wrap_blocks
from ckpt_surgery.measure.arguments import checked_inputs
from ckpt_surgery.measure.results import SURGERY_MODE, Level, Mode
from ckpt_surgery.measure.step import run_step
from ckpt_surgery.measure.switch import Switch, switch_of
from ckpt_surgery.runtime.surgery.surgery import Surgery

LEVELS: tuple[Level, ...] = ("run", "recompute", "set", "values", "state")


def measure(case: Case) -> Row:
    """Build the model of a case, and try everything on it."""
    torch.manual_seed(0)
    model, inputs = case.make()
    model.train()
    given = checked_inputs(inputs)
    try:
        own = switch_of(model)
    except VerifyError:
        own = None
    without = _memory(model, given, None, _nothing)
    library = _memory(model, given, "non_reentrant", own) if own is not None else None
    before = dict(_state(model))
    try:
        surgery = wrap_blocks(model)
    except SurgeryError as error:
        return Row(case.library, case.model, case.depth, problem=str(error), without=without, library_switch=library)
    verdicts: dict[str, str] = {SURGERY_MODE: _verdict(model, inputs, SURGERY_MODE)}
    wrapped = _memory(model, given, "non_reentrant", switch_of(model))
    blocks = _blocks(surgery)
    surgery.undo()
    return Row(
        case.library,
        case.model,
        case.depth,
        blocks=blocks,
        verdicts=verdicts,
        without=without,
        library_switch=library,
        wrapped=wrapped,
        undone=dict(_state(model)) == before and _memory(model, given, None, _nothing) == without,
    )


def _blocks(surgery: Surgery) -> dict[str, int]:
    """How many blocks of each class are checkpointed."""
    counts: Counter[str] = Counter()
    for stack in surgery.summary().stacks:
        counts[stack.block_class] += stack.checkpointed
    return dict(counts)


def _verdict(model: nn.Module, inputs: Any, mode: Mode) -> str:
    """Empty where a step has the gradients and the state of a run without checkpointing, else what it has not."""
    report = verify(model, inputs, modes=mode, levels=LEVELS)
    if report.problem:
        return report.problem
    (run,) = report.modes
    return "" if run.ok else run.refused or "; ".join(map(str, run.faults or run.skips))


def _nothing(model: nn.Module, mode: Mode | None) -> None:
    """Leave checkpointing as it is."""


def _memory(model: nn.Module, inputs: Mapping[str, Any], mode: Mode | None, switch: Switch) -> Memory:
    """What a step keeps and its peak. Raises RuntimeError where the step fails."""
    record = run_step(model, inputs, blocks={}, checkpointing=mode, switch=switch)
    if record.error is not None:
        raise RuntimeError(str(record.error))
    return Memory(record.memory.kept, max(live for _, live in record.memory.timeline.points))


def _state(model: nn.Module) -> Iterator[tuple[str, tuple[tuple[str, int], ...]]]:
    """What the attributes of every module are, hooks apart; flags by value."""
    for name, module in model.named_modules():
        values: dict[str, Callable[..., Any] | Any] = vars(module)
        yield (
            name,
            tuple(
                (key, value if isinstance(value, bool) else id(value))
                for key, value in sorted(values.items())
                if not key.startswith("_forward") and not key.startswith("_backward")
            ),
        )
