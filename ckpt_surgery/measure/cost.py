"""The memory and work of a step with checkpointing, compared with one without.

This reads records only; it runs nothing.
"""

from __future__ import annotations

from ckpt_surgery.measure.kinds import FaultKind
from ckpt_surgery.measure.record import NEGLIGIBLE, RunRecord
from ckpt_surgery.measure.results import Cost, Fault

LEAST_SAVING = 0.5
"""The share of the possible memory saving that has to be reached."""
WORTH_SAVING = 0.1
"""The share of the memory below which a possible saving is not asked for."""
MOST_HELD = 0.25
"""The share of what a block makes that it may keep without returning it. Most sound models keep nothing, MRA 0.2."""
MOST_RECOMPUTED = 0.5
"""The share of what blocks make that may be alive as another is recomputed; it is 0.9 if two blocks free nothing."""
MOST_WORK = 1.3
"""The extra work that the backward may do, in units of the blocks' forward. More than one, since reentrant mode also
computes gradients of inputs that need none."""


def cost_of(reference: RunRecord, checkpointed: RunRecord) -> Cost:
    """Return the costs of the checkpointed run and of the reference, and the best that is possible."""
    return Cost(
        kept_bytes=checkpointed.memory.kept,
        reference_kept_bytes=reference.memory.kept,
        best_kept_bytes=reference.memory.best + sum(checkpointed.memory.kept_by_policy.values()),
        backward_flops=checkpointed.flops.backward,
        reference_backward_flops=reference.flops.backward,
        best_backward_flops=reference.flops.backward + reference.flops.blocks - checkpointed.flops.spared,
        forward_flops=reference.flops.forward,
    )


def cost_faults(reference: RunRecord, checkpointed: RunRecord, cost: Cost) -> list[Fault]:
    """List the faults in what a step with checkpointing keeps or computes beyond its due."""
    faults = []
    on_purpose = checkpointed.memory.kept_by_policy
    held = {name: size - on_purpose.get(name, 0) for name, size in checkpointed.memory.held.items()}
    holding = tuple(
        name
        for name, plain in reference.memory.held.items()
        # a block that is not recomputed is reported as such
        if (name not in checkpointed.entries or checkpointed.entries[name].backward)
        and plain > NEGLIGIBLE * reference.memory.kept
        and held.get(name, 0) > MOST_HELD * plain
    )
    possible = cost.reference_kept_bytes - cost.best_kept_bytes
    saved = cost.reference_kept_bytes - cost.kept_bytes
    if holding or (possible > WORTH_SAVING * cost.reference_kept_bytes and saved < LEAST_SAVING * possible):
        figures = {"best": cost.best_kept_bytes, "kept": cost.kept_bytes, "reference": cost.reference_kept_bytes}
        faults.append(Fault(FaultKind.KEPT_BYTES, holding, details=figures))
    first, most = checkpointed.memory.recomputes[:1], max(checkpointed.memory.recomputes, default=0)
    # When a later recompute begins, more may be alive than at the first: a gradient as large as a block's input, a
    # share of what all blocks but the largest make, and, if blocks run more than once, all gradients not yet added up.
    made = reference.memory.held.values()
    repeated = any(entries.forward > 1 for entries in reference.entries.values())
    gradients = sum(gradient.nbytes for gradient in reference.gradients.values() if gradient is not None and repeated)
    others = sum(made) - max(made, default=0)
    if first and most - first[0] > reference.memory.best / max(len(made), 1) + MOST_RECOMPUTED * others + gradients:
        faults.append(Fault(FaultKind.RECOMPUTED_BYTES, details={"first": first[0], "most": most}))
    # hooks and functions of the model's own may keep a pool of buffers
    may_pool = checkpointed.packs or not set(checkpointed.functions) <= set(reference.functions)
    most_left = checkpointed.memory.kept if may_pool else NEGLIGIBLE * reference.memory.kept
    if checkpointed.memory.left - reference.memory.left > most_left:
        figures = {"reference": reference.memory.left, "found": checkpointed.memory.left}
        faults.append(Fault(FaultKind.LEFT_BYTES, details=figures))
    extra = cost.backward_flops - cost.reference_backward_flops
    recompute = cost.best_backward_flops - cost.reference_backward_flops
    if cost.kept_bytes < (1 - NEGLIGIBLE) * cost.best_kept_bytes:  # more than the blocks is checkpointed, and paid for
        recompute = cost.forward_flops
    recomputed = (name for name, entries in checkpointed.entries.items() if entries.backward)
    needless = not all(reference.wanted_recomputes(name) for name in recomputed)
    if recompute and extra > MOST_WORK * recompute and not needless:
        faults.append(Fault(FaultKind.BACKWARD_FLOPS, details={"ratio": extra / recompute}))
    return faults
