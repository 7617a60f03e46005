"""The memory and work of a step with checkpointing, compared with one without.

This reads records only; it runs nothing.
"""

from __future__ import annotations

from ckpt_surgery.measure.kinds import FaultKind
from ckpt_surgery.measure.record import LITTLE, RunRecord
from ckpt_surgery.measure.results import Cost, Fault

LEAST_SAVING = 0.5
"""The part of the possible saving of memory that has to be reached."""
WORTH_SAVING = 0.1
"""Where checkpointing could save less than this part of the memory, it is not asked to save any."""
MOST_HELD = 0.25
"""The part of what a block makes that it may keep without returning it. Most sound models keep nothing, MRA 0.2."""
MOST_RECOMPUTED = 0.5
"""The part of what blocks make that may be alive as another is recomputed. Two blocks that hold all have 0.9 of it."""
MOST_WORK = 1.3
"""How many times the blocks' forward the backward may do on top of its own work. Reentrant mode also takes
gradients that nobody asked for: of inputs that need none."""


def cost_of(reference: RunRecord, checkpointed: RunRecord) -> Cost:
    """Return the costs of the checkpointed run and of the reference, and the best that is possible."""
    return Cost(
        kept_bytes=checkpointed.memory.kept,
        reference_kept_bytes=reference.memory.kept,
        best_kept_bytes=reference.memory.best + sum(checkpointed.memory.told.values()),
        backward_flops=checkpointed.flops.backward,
        reference_backward_flops=reference.flops.backward,
        best_backward_flops=reference.flops.backward + reference.flops.blocks - checkpointed.flops.spared,
        forward_flops=reference.flops.forward,
    )


def cost_faults(reference: RunRecord, checkpointed: RunRecord, cost: Cost) -> list[Fault]:
    """List the faults in what a step with checkpointing keeps or computes beyond its due."""
    faults = []
    told = checkpointed.memory.told
    held = {name: size - told.get(name, 0) for name, size in checkpointed.memory.held.items()}
    holding = tuple(
        name
        for name, could in reference.memory.held.items()
        # that a block is not recomputed is a fault of its own
        if (name not in checkpointed.entries or checkpointed.entries[name].backward)
        and could > LITTLE * reference.memory.kept
        and held.get(name, 0) > MOST_HELD * could
    )
    possible = cost.reference_kept_bytes - cost.best_kept_bytes
    saved = cost.reference_kept_bytes - cost.kept_bytes
    if holding or (possible > WORTH_SAVING * cost.reference_kept_bytes and saved < LEAST_SAVING * possible):
        figures = {"best": cost.best_kept_bytes, "kept": cost.kept_bytes, "reference": cost.reference_kept_bytes}
        faults.append(Fault(FaultKind.KEPT_BYTES, holding, details=figures))
    first, most = checkpointed.memory.recomputes[:1], max(checkpointed.memory.recomputes, default=0)
    # As a recompute begins, more may be alive than at the first one: a gradient as large as what goes into a block, a
    # part of what all blocks but the largest make, and of those called more than once all gradients, not yet added up.
    made = reference.memory.held.values()
    again = any(entries.forward > 1 for entries in reference.entries.values())
    gradients = sum(gradient.nbytes for gradient in reference.gradients.values() if gradient is not None and again)
    others = sum(made) - max(made, default=0)
    if first and most - first[0] > reference.memory.best / max(len(made), 1) + MOST_RECOMPUTED * others + gradients:
        faults.append(Fault(FaultKind.RECOMPUTED_BYTES, details={"first": first[0], "most": most}))
    pools = checkpointed.packs or not set(checkpointed.functions) <= set(reference.functions)
    most_left = checkpointed.memory.kept if pools else LITTLE * reference.memory.kept
    if checkpointed.memory.left - reference.memory.left > most_left:
        figures = {"reference": reference.memory.left, "found": checkpointed.memory.left}
        faults.append(Fault(FaultKind.LEFT_BYTES, details=figures))
    extra = cost.backward_flops - cost.reference_backward_flops
    recompute = cost.best_backward_flops - cost.reference_backward_flops
    if cost.kept_bytes < (1 - LITTLE) * cost.best_kept_bytes:  # more than the blocks is checkpointed, and paid for
        recompute = cost.forward_flops
    recomputed = (name for name, entries in checkpointed.entries.items() if entries.backward)
    needless = not all(reference.wanted_recomputes(name) for name in recomputed)
    if recompute and extra > MOST_WORK * recompute and not needless:
        faults.append(Fault(FaultKind.BACKWARD_FLOPS, details={"ratio": extra / recompute}))
    return faults
