"""Collect what a guard has seen of one model so far, and what it sees of the step that is running."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from torch import nn
from torch.autograd.graph import Node

from ckpt_surgery.guarding.coverage import Coverage, OwnBlocks
from ckpt_surgery.guarding.entry_looks import HOOKS, EntryLooks
from ckpt_surgery.guarding.faults import CoverageCause, GuardFault, GuardFaultKind
from ckpt_surgery.guarding.memory import BlockMemory, LeftBytes, peaks
from ckpt_surgery.guarding.proof import BlockWitness, GradientProof, ProofStatus
from ckpt_surgery.guarding.report import GuardedBlock
from ckpt_surgery.guarding.steps import SecondRun, StepWatch, WatchedPhase

MOST_RETRIES = 20
"""How often proofs are retried in later steps: gradients are inf or nan while a GradScaler finds its scale, and some
are not asked for in a step of `torch.autograd.grad`, such as one that makes adversarial inputs."""
RETRIED = (ProofStatus.NOT_FINITE, ProofStatus.NOT_ASKED_FOR, ProofStatus.EARLIER_FORWARD)


@dataclass(slots=True)
class GuardResults:
    """Counts of entries in forward and backward, proofs, and bytes by block; peaks by device; faults.

    `hooks_gone` are the name prefixes of blocks whose recompute did not find the hooks of their forward. `retries`
    counts proofs to try again, and `repeats` those of blocks proved before. It is `complete` once no block is left to
    prove.
    """

    counts: dict[str, tuple[int, int]] = field(default_factory=dict)
    proofs: dict[str, GradientProof] = field(default_factory=dict)
    kept: dict[str, LeftBytes] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)
    faults: dict[tuple[GuardFaultKind, tuple[str, ...]], GuardFault] = field(default_factory=dict)
    hooks_gone: set[str] = field(default_factory=set)
    retries: int = 0
    repeats: int = 0
    complete: bool = False

    def next_to_prove(self, blocks: Collection[str], *, checked: bool) -> str | None:
        """Return the block to prove in this step: an unproved one, or in a `checked` step each block in turn.

        None once memory ran out in a proof: the next one might make the training itself run out.
        """
        if any(proof.status is ProofStatus.NO_MEMORY for proof in self.proofs.values()):
            self.complete = True
            return None
        again = RETRIED if self.retries < MOST_RETRIES else ()
        unproved = [name for name in blocks if name not in self.proofs or self.proofs[name].status in again]
        self.complete = not unproved
        if not (unproved or checked):
            return None
        names = unproved or list(blocks)
        name = names[self.repeats % len(names)]
        self.repeats += not unproved
        return name

    def add_proof(self, proof: GradientProof) -> list[GuardFault]:
        """Store a proof, and return the faults that it shows."""
        judged = (ProofStatus.PROVED, ProofStatus.WRONG, ProofStatus.OTHER_OUTPUT, ProofStatus.WRITTEN_TWICE)
        before = self.proofs.get(proof.name)
        if before is None or before.status not in judged or proof.status in judged:
            self.proofs[proof.name] = proof  # a later step may say less, as with layer drop
        self.retries += proof.status in RETRIED
        faults = []
        if proof.status is ProofStatus.WRONG:
            subjects = (proof.name, *proof.errors)
            error = max(proof.errors.values())
            kind = GuardFaultKind.WRONG_GRADIENTS
            faults.append(GuardFault(kind, subjects, proof.cause, error=error, factor=proof.factor))
        if proof.status is ProofStatus.OTHER_OUTPUT:
            faults.append(GuardFault(GuardFaultKind.OTHER_RECOMPUTE, (proof.name, *proof.exchanged), proof.cause))
        if proof.status is ProofStatus.CUT_OFF:
            faults.append(GuardFault(GuardFaultKind.CUT_OFF, (proof.name,), proof.cause))
        for kind, names in (
            (GuardFaultKind.WRITTEN_TWICE, proof.rewritten),
            (GuardFaultKind.GROWN_TWICE, proof.grown),
            (GuardFaultKind.OVERWRITTEN, proof.overwritten),
        ):
            if names:
                faults.append(GuardFault(kind, (proof.name, *names)))
        return faults

    def of_block(self, name: str, block_class: str) -> GuardedBlock:
        proof = self.proofs.get(name, GradientProof(name, ProofStatus.NOT_YET))
        return GuardedBlock(name, block_class, self.counts.get(name), proof, self.kept.get(name))

    def add_faults(self, faults: Iterable[GuardFault]) -> list[GuardFault]:
        """Store faults, and return those that are not like one already stored."""
        alike = {fault.alike for fault in self.faults.values()}
        new = {(fault.kind, fault.subjects): self._with_cause(fault) for fault in faults}
        self.faults |= {key: fault for key, fault in new.items() if key not in self.faults}
        return GuardFault.together(self._once(fault for fault in new.values() if fault.alike not in alike))

    def _with_cause(self, fault: GuardFault) -> GuardFault:
        untrained = fault.kind is GuardFaultKind.UNTRAINED
        gone = any(name.startswith(tuple(self.hooks_gone)) for name in fault.subjects)
        return replace(fault, cause=CoverageCause.HOOKS_GONE) if untrained and gone else fault

    def all_faults(self) -> tuple[GuardFault, ...]:
        """Return every fault. Parameters of a block that is cut off are not reported as untrained as well."""
        return tuple(self._once(self.faults.values()))

    def _once(self, faults: Iterable[GuardFault]) -> Iterator[GuardFault]:
        cut = tuple(f"{f.subjects[0]}." for f in self.faults.values() if f.kind is GuardFaultKind.CUT_OFF)
        for fault in faults:
            if fault.kind is not GuardFaultKind.UNTRAINED:
                yield fault
            elif names := tuple(name for name in fault.subjects if not name.startswith(cut)):
                yield replace(fault, subjects=names)


class CheckedStep(StepWatch):
    """A watch on one step of `model`: coverage and memory if it is `checked`, and gradients of the block `to_prove`.

    What is seen is added to `results`. If the step is checked, `looks` records what blocks find on entry, and `own`
    what the script checkpoints by itself.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Mapping[str, nn.Module],
        results: GuardResults,
        *,
        checked: bool,
        to_prove: str | None,
    ) -> None:
        super().__init__()
        self._model = model
        self._results = results
        self._coverage: Coverage | None = None
        self._memory: BlockMemory | None = None
        self._witness: BlockWitness | None = None
        self.looks: EntryLooks | None = None
        self.own: OwnBlocks | None = None
        with ExitStack() as watches:  # if one cannot be made, those before it are undone
            self._second = watches.enter_context(SecondRun(model, blocks))
            if checked:
                self.own = watches.enter_context(OwnBlocks(model))
                self.looks = watches.enter_context(EntryLooks(model, blocks))
                self._coverage = watches.enter_context(Coverage(model, blocks, self._recompute))
                self._memory = watches.enter_context(BlockMemory(blocks))
            if to_prove is not None:
                self._witness = watches.enter_context(BlockWitness(to_prove, model, blocks[to_prove]))
            self._hooks = watches.pop_all()

    def enter(self, phase: WatchedPhase) -> None:
        for watch in (self._second, self.own, self.looks, self._coverage, self._memory, self._witness):
            if watch is not None:
                watch.enter(phase)

    def note_results(self, nodes: Sequence[Node]) -> None:
        if self._witness is not None:
            self._witness.note_results(nodes)

    def end(self, *, follows_forward: bool) -> list[GuardFault]:
        """Return the faults of the step; none if another run may have had a part in it."""
        unprovable = ProofStatus.SEVERAL_CALLS if self._second.seen else None
        unprovable = ProofStatus.EARLIER_FORWARD if follows_forward else unprovable
        self._remove()
        faults: list[GuardFault] = []
        if self._coverage is not None and self.own is not None and unprovable is None:
            self._results.counts |= self._coverage.counts()
            faults += self._coverage.faults(self.own.found)
        changed = self.looks.changes if self.looks is not None else {}
        for name, changes in changed.items():
            if any(change.startswith(HOOKS) for change in changes):
                self._results.hooks_gone.add(f"{name}.")
        witness, self._witness = self._witness, None
        if witness is not None:
            proof = witness.end(unprovable)
            if proof.status is ProofStatus.OTHER_OUTPUT and not proof.exchanged and changed.get(proof.name):
                proof = replace(proof, exchanged=tuple(changed[proof.name]), cause=CoverageCause.UNKNOWN)
            faults += self._results.add_proof(proof)
        return faults

    @property
    def proving(self) -> str:
        """The block whose proof is running; empty if none is."""
        return "" if self._witness is None else self._witness.name

    def give_proof_up(self) -> bool:
        """Drop the running proof, for want of memory, and stop watching the step; return False if none is running."""
        if self._witness is None:
            return False
        self._results.add_proof(GradientProof(self.proving, ProofStatus.NO_MEMORY))
        self._memory = None
        self.undo()
        self._coverage = self._witness = None
        return True

    def undo(self) -> None:
        self._remove()
        if self._witness is not None:
            self._witness.release()

    def _recompute(self, block: nn.Module) -> None:
        for watch in (self.looks, self._witness):
            if watch is not None:
                watch.recompute(block)

    def _remove(self) -> None:
        self._hooks.close()
        if self._memory is not None:
            self._results.kept |= self._memory.kept
            self._results.peaks |= peaks(self._model)
