"""Two run records of the same step, next to each other: does checkpointing change nothing but the work?

Reads records only; it runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ckpt_surgery.verification.probe import RunRecord

NOISE_EPS = 16
"""The noise floor, in units of the dtype's eps times the run's largest gradient entry."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the checkpointed run did otherwise. `reasons` are sentences; there are none where all is well.

    `lost` and `gained` name gradients that only the reference or only the checkpointed run has, `wrong` those
    whose values differ. `error` is the largest relative error of a gradient (0 where all are equal bit for bit).
    `notes` tell what differs without being a fault of the gradients, such as buffers updated twice.
    """

    reasons: tuple[str, ...]
    lost: tuple[str, ...]
    gained: tuple[str, ...]
    wrong: tuple[str, ...]
    error: float
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.reasons


def compare(reference: RunRecord, checkpointed: RunRecord, *, tolerance: float | None = None) -> Verdict:
    """Judge a checkpointed run by one of the same model, inputs and seed that ran without checkpointing.

    Checks that both runs ended, that losses are equal, that the same gradients exist and have equal values, and
    that every block's computation was entered in the backward exactly as often as in the forward: recomputed
    once. `tolerance` is the largest relative error of a loss or a gradient (largest absolute difference over
    largest absolute value); by default the square root of the dtype's eps (3.5e-4 in float32, 1.5e-8 in
    float64). Differences under the noise floor of `NOISE_EPS` never count: a gradient that is zero in theory is
    0.0 in one run and 1e-9 in the other. One that is missing altogether where the other is not zero does.
    """
    broken = [
        f"The {which} run failed: {run.error}."
        for which, run in (("reference", reference), ("checkpointed", checkpointed))
        if run.error
    ]
    if broken:
        return Verdict(tuple(broken), (), (), (), float("nan"))
    ours = _gradients(reference)
    theirs = _gradients(checkpointed)
    floor = _noise_floor(ours.values())
    lost = tuple(n for n in ours if _has(ours[n], theirs.get(n), floor))
    gained = tuple(n for n in theirs if _has(theirs[n], ours.get(n), floor))
    errors = {n: _error(ours[n], theirs.get(n), floor) for n in ours if n not in lost and n not in gained}
    wrong = tuple(n for n, error in errors.items() if not error <= _tolerance(ours[n], tolerance))
    reasons = [
        *_loss_reasons(reference, checkpointed, tolerance),
        *_named(lost, "{count} of {total} gradients are lost under checkpointing", len(ours)),
        *_named(gained, "{count} gradients exist only under checkpointing", len(ours)),
        *_named(wrong, "{count} of {total} gradients have other values under checkpointing", len(ours)),
        *_entry_reasons(reference, checkpointed),
    ]
    notes = _named(
        _changed(reference.buffers, checkpointed.buffers), "{count} buffers end the step with other values", 0
    )
    return Verdict(tuple(reasons), lost, gained, wrong, max(errors.values(), default=0.0), tuple(notes))


def _gradients(run: RunRecord) -> dict[str, Tensor | None]:
    return {**run.gradients, **{f"input {name}": gradient for name, gradient in run.input_gradients.items()}}


def _largest(gradient: Tensor | None) -> float:
    return float(gradient.abs().max()) if gradient is not None and gradient.numel() else 0.0


def _noise_floor(gradients: Iterable[Tensor | None]) -> float:
    present = [g for g in gradients if g is not None]
    eps = max((torch.finfo(g.dtype).eps for g in present), default=0.0)
    return float(NOISE_EPS * eps * max(map(_largest, present), default=0.0))


def _has(here: Tensor | None, there: Tensor | None, floor: float) -> bool:
    """Whether `here` is a gradient and `there` is none: missing, or noise beside something above the noise."""
    if there is None:
        return _largest(here) != 0
    return not _largest(here) <= floor and _largest(there) <= floor


def _error(ours: Tensor | None, theirs: Tensor | None, floor: float) -> float:
    if ours is None or theirs is None or not ours.numel():
        return 0.0
    difference = float((ours - theirs).abs().max())
    return 0.0 if difference <= floor else difference / max(_largest(ours), _largest(theirs))


def _tolerance(gradient: Tensor | None, given: float | None) -> float:
    if given is not None:
        return given
    return float(torch.finfo(torch.float32 if gradient is None else gradient.dtype).eps ** 0.5)


def _loss_reasons(reference: RunRecord, checkpointed: RunRecord, tolerance: float | None) -> list[str]:
    allowed = _tolerance(next((g for g in reference.gradients.values() if g is not None), None), tolerance)
    if abs(reference.loss - checkpointed.loss) <= allowed * max(abs(reference.loss), abs(checkpointed.loss)):
        return []
    return [f"The loss is {checkpointed.loss:.9g} under checkpointing and {reference.loss:.9g} without."]


def _entry_reasons(reference: RunRecord, checkpointed: RunRecord) -> list[str]:
    never = [n for n, e in checkpointed.entries.items() if e.backward == 0]
    again = {n: e for n, e in checkpointed.entries.items() if e.backward and e.backward != e.forward}
    forward = [n for n, e in checkpointed.entries.items() if e.forward != reference.entries[n].forward]
    already = [n for n, e in reference.entries.items() if e.backward]
    total = len(checkpointed.entries)
    reasons = _named(never, "{count} of {total} blocks are not recomputed in the backward", total)
    for name, entries in again.items():
        reasons.append(
            f"Block {name} is entered {entries.forward + entries.backward} times a step "
            f"({entries.forward} in the forward, {entries.backward} in the backward)."
        )
    reasons += _named(forward, "{count} of {total} blocks run another number of times in the forward", total)
    reasons += _named(already, "{count} of {total} blocks are recomputed without checkpointing too", total)
    return reasons


def _changed(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> list[str]:
    return [n for n in ours if n not in theirs or not torch.equal(ours[n], theirs[n])]


def _named(names: Iterable[str], sentence: str, total: int) -> list[str]:
    """The sentence with its count, its total and the first few names; nothing where there are no names."""
    found = list(names)
    if not found:
        return []
    shown = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
    return [f"{sentence.format(count=len(found), total=total)}: {shown}."]
