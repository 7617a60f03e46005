"""The report of a guard as data, as a table and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ckpt_surgery.guarding.faults import NUMBER, GuardFault, GuardFaultKind
from ckpt_surgery.guarding.memory import LeftBytes
from ckpt_surgery.guarding.proof import GradientProof, ProofStatus
from ckpt_surgery.text import ShownInNotebooks, listed, plural, size, some, text_table


@dataclass(frozen=True, slots=True)
class GuardedBlock:
    """One block: its entries in forward and recompute in the last checked step, if it had one, and its proof.

    `measured` are the bytes that its forward left on a device that counts them.
    """

    name: str
    block_class: str
    counts: tuple[int, int] | None
    proof: GradientProof
    measured: LeftBytes | None = None

    @property
    def is_kept(self) -> bool:
        """Whether its gradients are right, and it keeps all that it makes instead of recomputing it."""
        once = self.counts is not None and self.counts[0] > 0 and not self.counts[1]
        return once and self.proof.status is ProofStatus.PROVED

    @property
    def memory(self) -> tuple[int, int, int] | None:
        """The bytes that the block kept, that it keeps at best, and that checkpointing saved; None if not known.

        At best it keeps only the tensors that it was given. If no device counts, a recomputed block is taken to keep
        these, and any other what it keeps when run alone.
        """
        proof = self.proof
        if not proof.alone_bytes or self.counts is None:
            return None
        best = proof.given_bytes
        whole = max(best, proof.alone_bytes + best)
        kept = whole if self.counts[1] < self.counts[0] else best
        if self.measured is not None:
            kept = best + max(self.measured.kept - self.measured.returned, 0)
        return kept, best, max(whole - kept, 0)


@dataclass(frozen=True, slots=True)
class GuardReport(ShownInNotebooks):
    """The report of a guard on one model after a number of `steps`. Print it for a table.

    In `ranks_compared` of them the gradients of all ranks were compared. `fingerprints` counts the recomputes that
    `wrap_blocks` compared with their forwards, and `unwatched` the parameters that FSDP1 shards. `peak_bytes` are by
    device, if it counts them. `branches` is what `check` finds about arguments that blocks with parameters
    `without_gradient` lose under checkpointing. `failure` is the error of the guard itself that ended the watch early.
    """

    model: str
    steps: int
    blocks: Sequence[GuardedBlock]
    faults: Sequence[GuardFault]
    ranks_compared: int = 0
    fingerprints: int = 0
    offloaded_bytes: int = 0
    without_gradient: Sequence[str] = ()
    branches: Sequence[str] = ()
    unwatched: int = 0
    peak_bytes: Mapping[str, int] = field(default_factory=dict)
    failure: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing wrong was seen; `proved` says how much was proved."""
        return not self.faults

    @property
    def told(self) -> list[GuardFault]:
        """The faults as they are shown: merged for equal blocks."""
        return GuardFault.together(self.faults)

    @property
    def proved(self) -> int:
        """The number of blocks whose gradients are those of a run without checkpointing."""
        return sum(row.proof.status is ProofStatus.PROVED for row in self.blocks)

    @property
    def recomputed_nothing(self) -> bool:
        """Whether the steps showed neither a fault nor a recompute."""
        watched = self.steps and not (self.faults or self.failure)
        return bool(watched) and all(row.counts is not None and not row.counts[1] for row in self.blocks)

    @property
    def kept_stacks(self) -> list[str]:
        """The stacks whose blocks have gradients and keep all they make, while others are recomputed."""
        reported = {name for fault in self.faults for name in fault.subjects}
        stacks: dict[str, list[GuardedBlock]] = {}
        for row in self.blocks:
            stacks.setdefault(row.name.rpartition(".")[0], []).append(row)
        some_are = any(row.counts is not None and row.counts[1] for row in self.blocks)
        kept = [name for name, rows in stacks.items() if name and some_are and all(row.is_kept for row in rows)]
        return [name for name in kept if reported.isdisjoint(row.name for row in stacks[name])]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON data, with each fault's message and rule."""
        data = asdict(self)
        for fault, said in zip(data["faults"], self.faults, strict=True):
            fault |= {"message": str(said), "rule": said.rule}
        for block, row in zip(data["blocks"], self.blocks, strict=True):
            block["memory"] = None if row.memory is None else dict(zip(_MEMORY, row.memory, strict=True))
        return {**data, "ok": self.ok, "proved": self.proved}

    def rows(self) -> list[tuple[str, ...]]:
        """Return the rows below `HEADINGS`; blocks of one class whose names differ only in numbers share one."""
        together: dict[tuple[str, str], list[GuardedBlock]] = {}
        for row in self.blocks:
            together.setdefault((NUMBER.sub("*", row.name), row.block_class), []).append(row)
        rows = []
        for names, blocks in together.items():
            once = sum(row.counts[0] == row.counts[1] > 0 for row in blocks if row.counts)
            proofs = Counter(row.proof.status for row in blocks)
            known = [memory for row in blocks if (memory := row.memory) is not None]
            sizes = [size(sum(each)) for each in zip(*known, strict=True)] if known else [""] * len(_MEMORY)
            said = ", ".join(f"{count} {status}" for status, count in proofs.items())
            rows.append((*names, f"{once} of {len(blocks)}", said, *sizes))
        return rows

    def __str__(self) -> str:
        head = (
            f"{self.model}: {plural(self.steps, 'step')}, {self.proved} of {plural(len(self.blocks), 'block')} proved"
        )
        lines = text_table(HEADINGS, self.rows(), right="not kept")
        if not self.blocks:
            head, lines = f"{self.model}: {plural(self.steps, 'step')}, and no blocks to watch", []
        faults = [f"fault: {fault}" + (f" ({fault.rule})" if fault.rule else "") for fault in self.told]
        return "\n".join([head, *lines, *self.notes(), *faults])

    def notes(self) -> list[str]:
        """Return what else was counted, one line each."""
        proofs = [row.proof for row in self.blocks]
        failed = [f"{proof.name}: {proof.detail}" for proof in proofs if proof.status is ProofStatus.FAILED]
        hidden = [proof.name for proof in proofs if proof.status is ProofStatus.REENTRANT]
        full = [proof.name for proof in proofs if proof.status is ProofStatus.NO_MEMORY]
        cut = tuple(f"{f.subjects[0]}." for f in self.faults if f.kind is GuardFaultKind.CUT_OFF)
        reported = {name for f in self.faults if f.kind is GuardFaultKind.UNTRAINED for name in f.subjects}
        without = [name for name in self.without_gradient if not (name in reported or name.startswith(cut))]
        without = without if self.steps else []
        peak = listed([f"{size(count)} on {device}" for device, count in self.peak_bytes.items()])
        notes = {
            STOPPED.format(self.failure): self.failure,
            f"could not be run alone: {some(failed, 1)}": failed,
            f"not proved: {some(hidden)}: {_REENTRANT}": hidden,
            f"memory ran out in the proof of {some(full)}: no more blocks are proved; {NO_PROOFS}": full,
            f"fingerprints: {plural(self.fingerprints, 'recompute')} compared": self.fingerprints,
            f"offload: {size(self.offloaded_bytes)} moved off the device": self.offloaded_bytes,
            f"peak: {peak}": peak,
            f"ranks: gradients compared in {plural(self.ranks_compared, 'step')}": self.ranks_compared,
            f"FSDP1 shards {plural(self.unwatched, 'parameter')}: their gradients are not watched": self.unwatched,
            f"without gradient: {plural(len(without), 'parameter')}: {some(without)}": without,
        }
        return [*(note for note, said in notes.items() if said), *(self.branches if self.steps else ())]


HEADINGS = ("stack", "block", "recomputed once", "gradients", "kept", "at best", "not kept")
_MEMORY = ("kept", "best", "saved")
STOPPED = "the guard failed and stopped watching ({}); the training goes on without it"
NO_PROOFS = "`run --no-prove`, or `prove=False`, leaves proofs out"
_REENTRANT = (
    "checkpointed in reentrant mode by its library, which follows no keywords, containers and nested results, so that "
    "gradients may be lost there: use use_reentrant=False, or call wrap_blocks"
)
