"""Two run records of the same step, next to each other: does checkpointing change nothing but the work?

Reads records only; it runs nothing. Why a fault is there is said in `causes`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ckpt_surgery.measure.block_entries import Entries
from ckpt_surgery.measure.kinds import FaultKind
from ckpt_surgery.measure.record import RunRecord
from ckpt_surgery.measure.results import Cost, Fault
from ckpt_surgery.runtime.tensors import same_bits

NOISE_EPS = 16
"""The noise floor without a repeated run, in units of the dtype's eps times the run's largest gradient entry."""
NOISE_MARGIN = 8
"""The noise floor with a repeated run, in units of what the repetition changed."""
LEAST_SAVING = 0.5
"""The part of the possible saving of memory that has to be reached."""
WORTH_SAVING = 0.1
"""Where checkpointing could save less than this part of the memory, it is not asked to save any."""
MOST_WORK = 1.3
"""How many times the blocks' forward the backward may do on top of its own work. Reentrant mode also takes
gradients that nobody asked for: of inputs that need none."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the checkpointed run did differently; no `faults` where all is well.

    `lost` and `gained` name gradients that only the reference or only the checkpointed run has, `wrong` those
    whose values differ. `errors` are relative errors of the gradients that both runs have, by name. `cost` is None
    where a run broke off, or the backward was cut off and costs less than it should.
    """

    faults: tuple[Fault, ...]
    lost: tuple[str, ...] = ()
    gained: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    errors: Mapping[str, float] | None = None
    cost: Cost | None = None

    @property
    def ok(self) -> bool:
        return not self.faults

    @property
    def error(self) -> float:
        """The largest relative error of a gradient; 0 where all are equal bit for bit."""
        return max((self.errors or {}).values(), default=0.0)


def compare(
    reference: RunRecord,
    checkpointed: RunRecord,
    *,
    floors: Mapping[str, float] | None = None,
    tolerance: float | None = None,
) -> Verdict:
    """Judge a checkpointed run by one of the same model, inputs and seed that ran without checkpointing.

    Checks that both runs ended, that every block was entered in the backward exactly as often as the backward
    came through it, that the same gradients exist, that they and the losses have equal values, that buffers,
    caches and randomness are as in the reference, and that memory was saved at no more than the price of a recompute.

    `tolerance` is the largest relative error of a loss or a gradient (largest absolute difference over
    largest absolute value); by default the square root of the dtype's eps (3.5e-4 in float32, 1.5e-8 in
    float64). Absolute differences up to `floors` never count, by gradient name (default: `noise_floors` of the
    reference): a gradient that is zero in theory is 0.0 in one run and 1e-9 in the other. One that is missing
    altogether where the reference has one above zero always counts.
    """
    broken = _broken(reference, checkpointed)
    if broken:
        return Verdict(tuple(broken))
    ours, theirs = all_gradients(reference), all_gradients(checkpointed)
    given = noise_floors(reference) if floors is None else floors
    floor = {name: given.get(name, 0.0) for name in {**ours, **theirs}}
    lost = tuple(n for n in ours if _has(ours[n], theirs.get(n), floor[n]))
    gained = tuple(n for n in theirs if _has(theirs[n], ours.get(n), floor[n]))
    errors = {n: _error(ours[n], theirs.get(n), floor[n]) for n in ours if n not in lost and n not in gained}
    wrong = tuple(n for n, error in errors.items() if not error <= _tolerance(ours[n], tolerance))
    cost = None if lost else cost_of(reference, checkpointed)
    faults = [
        *_recompute_faults(reference, checkpointed),
        *_set_faults(lost, gained, len(ours)),
        # the loss of an output without one leaves out what has no gradient any more
        *([] if lost else _loss_faults(reference, checkpointed, tolerance)),
        *_value_faults(wrong, errors, len(ours)),
        *_state_faults(reference, checkpointed),
        *(_cost_faults(cost) if cost else []),
    ]
    return Verdict(tuple(faults), lost, gained, wrong, errors, cost)


def all_gradients(run: RunRecord) -> dict[str, Tensor | None]:
    """The gradients of the parameters, and those of the inputs under `input <name>`."""
    return {**run.gradients, **{input_name(name): gradient for name, gradient in run.input_gradients.items()}}


def input_name(name: str) -> str:
    """How faults name an input of the model, apart from its parameters."""
    return f"input {name}"


def noise_floors(reference: RunRecord, *repeated: RunRecord) -> dict[str, float]:
    """By gradient name, the absolute difference that rounding alone can make.

    `repeated` are the same run with its sums taken in another order: `NOISE_MARGIN` times the most that changed,
    and a few units in the last place of the gradient itself. Without any, one floor for all from the dtype and the
    run's largest gradient entry, which hides more.
    """
    ours = all_gradients(reference)
    if not repeated:
        scale = max(map(_largest, ours.values()), default=0.0)
        return {name: NOISE_EPS * _eps(gradient) * scale for name, gradient in ours.items()}
    theirs = [all_gradients(run) for run in repeated]
    return {
        name: NOISE_MARGIN * max(_difference(gradient, run.get(name)) for run in theirs)
        + 4 * _eps(gradient) * _largest(gradient)
        for name, gradient in ours.items()
    }


def cost_of(reference: RunRecord, checkpointed: RunRecord) -> Cost:
    """What the checkpointed run cost, what the reference did, and what is possible."""
    return Cost(
        kept_bytes=checkpointed.kept_bytes,
        reference_kept_bytes=reference.kept_bytes,
        best_kept_bytes=reference.best_kept_bytes,
        backward_flops=checkpointed.backward_flops,
        reference_backward_flops=reference.backward_flops,
        best_backward_flops=reference.backward_flops + reference.block_flops,
        forward_flops=reference.forward_flops,
    )


def _broken(reference: RunRecord, checkpointed: RunRecord) -> list[Fault]:
    runs = ((FaultKind.REFERENCE_RAISED, reference), (FaultKind.STEP_RAISED, checkpointed))
    return [Fault(kind, details={"error": str(run.error)}) for kind, run in runs if run.error]


def _largest(gradient: Tensor | None) -> float:
    return float(gradient.abs().max()) if gradient is not None and gradient.numel() else 0.0


def _eps(gradient: Tensor | None) -> float:
    return 0.0 if gradient is None else torch.finfo(gradient.dtype).eps


def _difference(ours: Tensor | None, theirs: Tensor | None) -> float:
    if ours is None or theirs is None:
        return _largest(theirs if ours is None else ours)
    return float((ours - theirs).abs().max()) if ours.numel() else 0.0


def _has(here: Tensor | None, there: Tensor | None, floor: float) -> bool:
    """Whether `here` is a gradient and `there` is none: missing, or noise beside something above the noise."""
    if there is None:
        return _largest(here) != 0
    return not _largest(here) <= floor and _largest(there) <= floor and not _difference(here, there) <= floor


def _error(ours: Tensor | None, theirs: Tensor | None, floor: float) -> float:
    if ours is None or theirs is None or torch.equal(ours, theirs):
        return 0.0
    difference = _difference(ours, theirs)
    return 0.0 if difference <= floor else difference / max(_largest(ours), _largest(theirs))


def _tolerance(gradient: Tensor | None, given: float | None) -> float:
    if given is not None:
        return given
    return float(torch.finfo(torch.float32 if gradient is None else gradient.dtype).eps ** 0.5)


def _recompute_faults(reference: RunRecord, checkpointed: RunRecord) -> list[Fault]:
    """One fault for all blocks with the same counts."""
    blocks: dict[tuple[FaultKind, tuple[tuple[str, int], ...]], list[str]] = {}
    for name, entries in checkpointed.entries.items():
        before = reference.entries.get(name, entries)
        wanted = reference.calls[name].backward_calls if name in reference.calls else entries.forward
        if fault := _entry_fault(before, entries, wanted):
            kind, details = fault
            blocks.setdefault((kind, tuple(details.items())), []).append(name)
    return [Fault(kind, tuple(names), dict(details)) for (kind, details), names in blocks.items()]


def _entry_fault(before: Entries, entries: Entries, wanted: int) -> tuple[FaultKind, dict[str, int]] | None:
    """What is wrong with the entries of one block, of which the reference has `before`; None where nothing is."""
    forward, backward = entries.forward, entries.backward
    if before.backward:
        return FaultKind.RECOMPUTED_IN_REFERENCE, {"backward": before.backward}
    if before.forward and forward != before.forward:  # a forward that is called directly goes unseen
        return FaultKind.FORWARD_COUNT, {"reference": before.forward, "forward": forward}
    if backward == wanted:
        return None
    if not backward:
        return FaultKind.NOT_RECOMPUTED, {}
    totals = {"expected": forward + wanted, "found": forward + backward}
    return FaultKind.RECOMPUTE_COUNT, {**totals, "forward": forward, "backward": backward}


def _set_faults(lost: tuple[str, ...], gained: tuple[str, ...], total: int) -> list[Fault]:
    sets = ((FaultKind.GRADIENT_LOST, lost), (FaultKind.GRADIENT_GAINED, gained))
    return [Fault(kind, names, {"count": len(names), "total": total}) for kind, names in sets if names]


def _loss_faults(reference: RunRecord, checkpointed: RunRecord, tolerance: float | None) -> list[Fault]:
    allowed = _tolerance(next((g for g in reference.gradients.values() if g is not None), None), tolerance)
    if abs(reference.loss - checkpointed.loss) <= allowed * max(abs(reference.loss), abs(checkpointed.loss)):
        return []
    return [Fault(FaultKind.LOSS_VALUE, details={"reference": reference.loss, "found": checkpointed.loss})]


def _value_faults(wrong: tuple[str, ...], errors: Mapping[str, float], total: int) -> list[Fault]:
    if not wrong:
        return []
    worst = max(wrong, key=lambda name: weight(errors[name]))
    names = (worst, *(name for name in wrong if name != worst))
    details = {"error": errors[worst], "count": len(wrong), "total": total}
    return [Fault(FaultKind.GRADIENT_VALUE, names, details)]


def weight(error: float) -> float:
    """What to order relative errors by: not a number is worse than any."""
    return float("inf") if math.isnan(error) else error


def _state_faults(reference: RunRecord, checkpointed: RunRecord) -> list[Fault]:
    faults = []
    names = dict.fromkeys((*reference.buffers, *checkpointed.buffers))
    changed = tuple(n for n in names if not _same(reference.buffers.get(n), checkpointed.buffers.get(n)))
    if changed:
        details = {"count": len(changed), "total": len(reference.buffers)}
        faults.append(Fault(FaultKind.BUFFER_CHANGED, changed, details))
    faults += cache_faults(checkpointed)
    drawing = tuple(n for n in checkpointed.rng_mismatches if n in reference.calls and reference.calls[n].uses_rng)
    if drawing:
        faults.append(Fault(FaultKind.RNG_NOT_RESTORED, drawing))
    if checkpointed.rng_moved and not reference.rng_moved:
        faults.append(Fault(FaultKind.RNG_MOVED))
    return faults


def cache_faults(run: RunRecord) -> list[Fault]:
    """The caches among the inputs that the backward wrote into."""
    return [
        Fault(
            FaultKind.CACHE_WRITTEN,
            (input_name(name),),
            {"before": before, "forward": forward, "backward": backward},
        )
        for name, (before, forward, backward) in run.cache.items()
        if backward != forward
    ]


def _same(ours: Tensor | None, theirs: Tensor | None) -> bool:
    if ours is None or theirs is None:
        return False
    if same_bits(ours, theirs):
        return True
    if not ours.is_floating_point() or ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    # a forward without gradients, as in reentrant mode, takes other kernels here and there
    return _difference(ours, theirs) <= NOISE_EPS * _eps(ours) * _largest(ours)


def _cost_faults(cost: Cost) -> list[Fault]:
    faults = []
    possible = cost.reference_kept_bytes - cost.best_kept_bytes
    saved = cost.reference_kept_bytes - cost.kept_bytes
    if possible > WORTH_SAVING * cost.reference_kept_bytes and saved < LEAST_SAVING * possible:
        figures = {"best": cost.best_kept_bytes, "kept": cost.kept_bytes, "reference": cost.reference_kept_bytes}
        faults.append(Fault(FaultKind.KEPT_BYTES, details=figures))
    extra = cost.backward_flops - cost.reference_backward_flops
    recompute = cost.best_backward_flops - cost.reference_backward_flops
    if recompute and extra > MOST_WORK * recompute:
        faults.append(Fault(FaultKind.BACKWARD_FLOPS, details={"ratio": extra / recompute}))
    return faults
