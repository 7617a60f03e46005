"""Compare two run records of the same step: does checkpointing change nothing but the work?

This reads records only; it runs nothing. Causes are in `causes`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ckpt_surgery.measure.block_entries import AUTOCAST_STATES, Entries
from ckpt_surgery.measure.contents import NOISE_EPS, differ, other_outputs
from ckpt_surgery.measure.cost import MOST_HELD, WORTH_SAVING, cost_faults, cost_of
from ckpt_surgery.measure.kinds import FaultKind
from ckpt_surgery.measure.record import RunRecord, input_name
from ckpt_surgery.measure.results import Cost, Fault
from ckpt_surgery.runtime.tools.tensors import same_bits

LOSS = ""
"""The key of the loss among the floors: no gradient has an empty name."""
NOISE_MARGIN = 8
"""The noise floor of an entry, as a multiple of the most that repeated runs changed."""
NORM_MARGIN = 3
"""The same for the norm of all entries: its noise varies less from run to run."""
MANY_ENTRIES = 64
"""The number of entries from which on a gradient is also judged by its norm."""


@dataclass(frozen=True, slots=True)
class Floor:
    """The difference that rounding alone can make to any `entry` of a gradient, and to the `norm` of all entries."""

    entry: float = 0.0
    norm: float = math.inf

    def is_lost(self, here: Tensor | None, there: Tensor | None) -> bool:
        """Tell whether only `here` is a gradient: `there` is missing, or is noise while `here` is above the noise."""
        if there is None:
            return _largest(here) != 0
        above, below = not _largest(here) <= self.entry, _largest(there) <= self.entry
        return above and below and not _largest(_moved(here, there)) <= self.entry

    def error(self, ours: Tensor | None, theirs: Tensor | None) -> float:
        """Return the difference relative to the largest entry; 0.0 up to the floor, or if a gradient is missing."""
        if ours is None or theirs is None or torch.equal(ours, theirs):
            return 0.0
        moved = ours - theirs
        if _largest(moved) <= self.entry and (self.norm == math.inf or _norm(moved) <= self.norm):
            return 0.0
        return _largest(moved) / max(_largest(ours), _largest(theirs))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The differences of a checkpointed run from the reference; no `faults` if all is well.

    `lost` and `gained` name gradients that only the reference or only the checkpointed run has, `wrong` those
    whose values differ. `errors` are relative errors of the gradients that both runs have, by name. `cost` is None
    if a run broke off, or if the backward was cut off and so costs less than it should. `in_parts` are the blocks that
    checkpoint only parts of themselves.
    """

    faults: tuple[Fault, ...]
    lost: tuple[str, ...] = ()
    gained: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    errors: Mapping[str, float] | None = None
    cost: Cost | None = None
    in_parts: frozenset[str] = frozenset()

    @property
    def ok(self) -> bool:
        return not self.faults

    @property
    def gradient_fault(self) -> Fault | None:
        """The first fault by which the two runs do not compute the same; None if they do."""
        return next((fault for fault in self.faults if fault.level in ("run", "set", "values")), None)

    @property
    def error(self) -> float:
        """The largest relative error of a gradient; 0 where all are equal bit for bit."""
        return max((self.errors or {}).values(), default=0.0)


_NO_NOISE = Floor()


def compare(
    reference: RunRecord,
    checkpointed: RunRecord,
    *,
    floors: Mapping[str, Floor] | None = None,
    tolerance: float | None = None,
) -> Verdict:
    """Compare a checkpointed run with a run of the same model, inputs and seed without checkpointing.

    Checks that both runs ended, that every block was entered in the backward exactly as often as the backward
    came through it, that the same gradients exist, that they and the losses have equal values, that buffers,
    caches and randomness are as in the reference, and that memory was saved at no more than the price of a recompute.

    Absolute differences up to `floors` never count, by gradient name, and under `LOSS` that of the loss (default:
    `noise_floors` of the reference): a gradient that is zero in theory is 0.0 in one run and 1e-9 in the other. Every
    other difference counts, or with a `tolerance` those above it: the largest relative error of a loss or a gradient,
    largest absolute difference over largest absolute value. A gradient that is missing altogether always counts if the
    reference has one above zero.
    """
    if checkpointed.error and checkpointed.error.endless:
        return Verdict((Fault(FaultKind.BACKWARD_UNFINISHED, details={"error": checkpointed.error.message}),))
    runs = ((FaultKind.REFERENCE_RAISED, reference), (FaultKind.STEP_RAISED, checkpointed))
    if broken := [Fault(kind, details={"error": str(run.error)}) for kind, run in runs if run.error]:
        return Verdict(tuple(broken))
    ours, theirs = reference.all_gradients, checkpointed.all_gradients
    given = noise_floors(reference) if floors is None else floors
    floor = {name: given.get(name, _NO_NOISE) for name in {**ours, **theirs}}
    lost = tuple(n for n in ours if floor[n].is_lost(ours[n], theirs.get(n)))
    gained = tuple(n for n in theirs if floor[n].is_lost(theirs[n], ours.get(n)))
    errors = {n: floor[n].error(ours[n], theirs.get(n)) for n in ours if n not in lost and n not in gained}
    wrong = tuple(n for n, error in errors.items() if not error <= (tolerance or 0.0))
    cost = None if lost else cost_of(reference, checkpointed)
    in_parts = _blocks_in_parts(reference, checkpointed, sound=not lost)
    verdict = Verdict((), lost, gained, wrong, errors, cost, in_parts)
    states = checkpointed.differing_states.items()
    recast = tuple(name for name, state in states if state in AUTOCAST_STATES and name in checkpointed.entries)
    faults = [
        *([] if checkpointed.only_packs else _recompute_faults(reference, checkpointed, in_parts)),
        *_value_faults(reference, checkpointed, verdict, given.get(LOSS, _NO_NOISE).entry, tolerance or 0.0),
        *_state_faults(reference, checkpointed),
        *(cost_faults(reference, checkpointed, cost) if cost else []),
        *([Fault(FaultKind.AUTOCAST_NOT_RESTORED, recast)] if recast else []),
    ]
    return replace(verdict, faults=tuple(faults))


def noise_floors(reference: RunRecord, *repeated: RunRecord) -> dict[str, Floor]:
    """Return the absolute difference that rounding alone can make, by gradient name, with the loss under `LOSS`.

    `repeated` are the same run with its sums taken in another order. A floor is then `NOISE_MARGIN` times the most
    that changed in an entry and `NORM_MARGIN` times the norm of the change, plus a few roundings of the gradient.
    Without them, the floor of all gradients follows from the dtype and the largest entry of any, which hides more.
    """
    ours = reference.all_gradients
    eps = max(map(_eps, ours.values()), default=0.0)
    if not repeated:
        scale = max(map(_largest, ours.values()), default=0.0)
        floors = {name: Floor(NOISE_EPS * _eps(gradient) * scale) for name, gradient in ours.items()}
        return {**floors, LOSS: Floor(NOISE_EPS * eps * abs(reference.loss))}
    theirs = [run.all_gradients for run in repeated]
    floors = {}
    for name, gradient in ours.items():
        changes = [_moved(gradient, run.get(name)) for run in theirs]
        entry = NOISE_MARGIN * max(map(_largest, changes))
        many = gradient is not None and gradient.numel() >= MANY_ENTRIES
        roundings = _roundings(gradient)
        limit = NORM_MARGIN * max(map(_norm, changes)) + roundings * _norm(gradient) if many else math.inf
        floors[name] = Floor(entry + roundings * _largest(gradient), limit)
    moved = max(abs(reference.loss - run.loss) for run in repeated)
    return {**floors, LOSS: Floor(NOISE_MARGIN * moved + 4 * eps * abs(reference.loss))}


def _roundings(gradient: Tensor | None) -> float:
    """Return the relative error that a few roundings make; in a precise dtype, more of them hide no fault."""
    eps = _eps(gradient)
    return eps * (4 if eps > 1e-4 else 128)


def _largest(gradient: Tensor | None) -> float:
    return float(gradient.abs().max()) if gradient is not None and gradient.numel() else 0.0


def _eps(gradient: Tensor | None) -> float:
    return 0.0 if gradient is None else torch.finfo(gradient.dtype).eps


def _norm(gradient: Tensor | None) -> float:
    return 0.0 if gradient is None else float(gradient.double().norm())


def _moved(ours: Tensor | None, theirs: Tensor | None) -> Tensor | None:
    """Subtract one gradient from another; a missing one counts as zero."""
    if ours is None or theirs is None:
        return theirs if ours is None else ours
    return ours - theirs


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    """Return the difference of two gradients relative to the largest entry; 0.0 where rounding can explain it."""
    floor = Floor(_roundings(ours) * _largest(ours), _roundings(ours) * _norm(ours))
    return floor.error(ours, theirs)


def _blocks_in_parts(reference: RunRecord, checkpointed: RunRecord, *, sound: bool) -> frozenset[str]:
    """Find the blocks that checkpoint only parts of themselves, or recompute in a custom autograd function.

    The latter are known by what they save, and only if no gradient is lost (`sound`): a cut graph saves memory too.
    """
    less = {
        name
        for name, plain in reference.memory.held.items()
        if sound and checkpointed.functions and checkpointed.memory.held.get(name, 0) < (1 - WORTH_SAVING) * plain
    }
    return frozenset(
        name
        for name, entries in checkpointed.entries.items()
        if not (entries.backward or entries.direct) and (entries.parts or name in less)
    )


def _left_out(reference: RunRecord, checkpointed: RunRecord, block: str) -> Iterator[str]:
    """Yield the parts of a block that are not recomputed while others are, and keep much compared with the saving."""
    recomputed = [f"{block}.{part}." for part in checkpointed.entries[block].parts]
    sizes = {f"{part}.": size for part, size in reference.memory.parts.items() if part.startswith(f"{block}.")}
    saved = reference.memory.held.get(block, 0) - checkpointed.memory.held.get(block, 0)
    for part in sizes if recomputed else ():
        size = sum(size for inner, size in sizes.items() if inner.startswith(part))
        left_out = not any(other.startswith(part) or part.startswith(other) for other in recomputed)
        if left_out and size > MOST_HELD * saved:
            yield part.removesuffix(".")


def _recompute_faults(reference: RunRecord, checkpointed: RunRecord, in_parts: frozenset[str]) -> list[Fault]:
    """Return one fault for all blocks with the same counts, and one for parts left out of the recompute."""
    blocks: dict[tuple[FaultKind, tuple[tuple[str, int], ...]], list[str]] = {}
    parts: list[str] = []
    saved = checkpointed.memory.kept < reference.memory.kept
    has_effect = saved or any(entries.backward for entries in checkpointed.entries.values())
    for name, entries in checkpointed.entries.items():
        before = reference.entries.get(name, entries)
        wanted = reference.wanted_recomputes(name, entries.forward)
        trained = any(g is not None for n, g in reference.gradients.items() if n.startswith(f"{name}."))
        if not wanted and entries.backward <= entries.forward and "reentrant" in checkpointed.modes:
            continue  # with a dummy input that requires gradient, blocks are recomputed that nobody asks a gradient of
        if fault := _entry_fault(before, entries, wanted, without_effect=trained and not has_effect):
            kind, details = fault
            if kind is FaultKind.NOT_RECOMPUTED and name in in_parts:
                parts += _left_out(reference, checkpointed, name)
            else:
                blocks.setdefault((kind, tuple(details.items())), []).append(name)
    faults = [Fault(kind, tuple(names), dict(details)) for (kind, details), names in blocks.items()]
    return faults + ([Fault(FaultKind.PART_NOT_RECOMPUTED, tuple(parts))] if parts else [])


def _entry_fault(
    before: Entries, entries: Entries, wanted: int, *, without_effect: bool
) -> tuple[FaultKind, dict[str, int]] | None:
    """Return the fault in the entries of one block, compared with `before` in the reference; None if there is none.

    `without_effect` says that its parameters get gradients, but nothing is saved or recomputed in the whole model.
    """
    forward, backward = entries.forward, entries.backward
    if before.direct and entries.direct:  # without a call to hook, it is unknown whether the backward came through it
        return (FaultKind.NOT_RECOMPUTED, {}) if without_effect else None
    if before.forward and not before.direct and forward != before.forward:
        return FaultKind.FORWARD_COUNT, {"reference": before.forward, "forward": forward}
    if backward == wanted:
        return None
    if not backward:
        return FaultKind.NOT_RECOMPUTED, {}
    totals = {"expected": forward + wanted, "found": forward + backward}
    return FaultKind.RECOMPUTE_COUNT, {**totals, "forward": forward, "backward": backward}


def _value_faults(
    reference: RunRecord, checkpointed: RunRecord, verdict: Verdict, floor: float, tolerance: float
) -> Iterator[Fault]:
    """Yield the faults of gradients, of the outputs and of the loss, whose noise is up to `floor`."""
    total, errors = len(reference.all_gradients), verdict.errors or {}
    for kind, names in ((FaultKind.GRADIENT_LOST, verdict.lost), (FaultKind.GRADIENT_GAINED, verdict.gained)):
        if names:
            yield Fault(kind, names, {"count": len(names), "total": total})
    ours, theirs = reference.loss, checkpointed.loss
    others = tuple(f"output {name}".rstrip() for name in other_outputs(reference.outputs, checkpointed.outputs))
    # a loss made up from outputs leaves out those that have lost their gradient
    if not verdict.lost and not abs(ours - theirs) <= max(floor, tolerance * max(abs(ours), abs(theirs))):
        yield Fault(FaultKind.LOSS_VALUE, details={"reference": ours, "found": theirs})
    elif others:
        yield Fault(FaultKind.OUTPUT_VALUE, others, {"count": len(others), "total": len(reference.outputs)})
    if verdict.wrong:
        worst = max(verdict.wrong, key=lambda name: severity(errors[name]))
        names = (worst, *(name for name in verdict.wrong if name != worst))
        yield Fault(FaultKind.GRADIENT_VALUE, names, {"error": errors[worst], "count": len(names), "total": total})


def severity(error: float) -> float:
    """Return a key that orders relative errors: NaN is worse than any number."""
    return float("inf") if math.isnan(error) else error


def _state_faults(reference: RunRecord, checkpointed: RunRecord) -> list[Fault]:
    faults = []
    names = dict.fromkeys((*reference.buffers, *checkpointed.buffers))
    changed = tuple(n for n in names if not _same(reference.buffers.get(n), checkpointed.buffers.get(n)))
    before, after = reference.buffers_before, checkpointed.buffers_before
    comparable = (n for n in before if n in after and n not in reference.unread)
    late = tuple(n for n in comparable if differ(before[n], after[n]))  # yet equal after the backward
    if not reference.unread.issuperset(changed):
        details = {"count": len(changed), "total": len(reference.buffers)}
        faults.append(Fault(FaultKind.BUFFER_CHANGED, changed, details))
    elif late:
        faults.append(Fault(FaultKind.BUFFER_LATE, late, {"count": len(late), "total": len(reference.buffers)}))
    faults += cache_faults(checkpointed, reference)
    drawing = tuple(n for n in checkpointed.rng_mismatches if n in reference.calls and reference.calls[n].uses_rng)
    if drawing:
        faults.append(Fault(FaultKind.RNG_NOT_RESTORED, drawing))
    if checkpointed.rng_moved and not reference.rng_moved:
        faults.append(Fault(FaultKind.RNG_MOVED))
    return faults


def cache_faults(run: RunRecord, reference: RunRecord) -> list[Fault]:
    """Return a fault for each cache that the backward wrote to, and one for all else that only it wrote to."""
    grown = [
        Fault(
            FaultKind.CACHE_WRITTEN, (input_name(name),), {"before": before, "forward": forward, "backward": backward}
        )
        for name, (before, forward, backward) in run.cache.items()
        if backward != forward
    ]
    reported = {fault.subjects[0] for fault in grown}
    written = [name for name in run.written if name not in reference.written and name not in reported]
    return [*grown, Fault(FaultKind.WRITTEN_AGAIN, tuple(written))] if written else grown


def _same(ours: Tensor | None, theirs: Tensor | None) -> bool:
    if ours is None or theirs is None:
        return False
    if same_bits(ours, theirs):
        return True
    if not ours.is_floating_point() or ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    if ours.itemsize < 2 or ours.layout != torch.strided:  # such tensors cannot be subtracted
        return False
    # a forward without gradients, as in reentrant mode, may use other kernels
    return _largest(_moved(ours, theirs)) <= NOISE_EPS * _eps(ours) * _largest(ours)
