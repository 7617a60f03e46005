"""What a guard saw, as data, a table and json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ckpt_surgery.guarding.faults import GuardFault
from ckpt_surgery.guarding.proof import GradientProof, ProofStatus
from ckpt_surgery.text import plural, size, some, text_table


@dataclass(frozen=True, slots=True)
class GuardedBlock:
    """One block: its entries in forward and recompute in the last checked step, if it had one, and its proof."""

    name: str
    block_class: str
    counts: tuple[int, int] | None
    proof: GradientProof


@dataclass(frozen=True, slots=True)
class GuardReport:
    """What a guard saw of one model in so many steps. Print it for a table.

    In `ranks_compared` of them the gradients of all ranks were held against each other.
    """

    model: str
    steps: int
    blocks: Sequence[GuardedBlock]
    faults: Sequence[GuardFault]
    ranks_compared: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing wrong was seen; `proved` says how much was."""
        return not self.faults

    @property
    def proved(self) -> int:
        """The blocks whose gradients are those of a run without checkpointing."""
        return sum(row.proof.status is ProofStatus.PROVED for row in self.blocks)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        data = asdict(self)
        for fault, said in zip(data["faults"], self.faults, strict=True):
            fault["message"] = str(said)
        return {**data, "ok": self.ok, "proved": self.proved}

    def __str__(self) -> str:
        rows = []
        for kind in dict.fromkeys(row.block_class for row in self.blocks):
            blocks = [row for row in self.blocks if row.block_class == kind]
            seen = [row.counts for row in blocks if row.counts]
            once = sum(forward == recomputed for forward, recomputed in seen if forward)
            statuses = Counter(row.proof.status for row in blocks)
            proofs = ", ".join(f"{count} {status.value}" for status, count in statuses.items())
            saved = sum(row.proof.alone_bytes - row.proof.given_bytes for row in blocks if row.proof.alone_bytes)
            rows.append((kind, f"{once} of {len(blocks)}", proofs, size(max(saved, 0)) if saved else ""))
        head = (
            f"{self.model}: {plural(self.steps, 'step')}, {self.proved} of {plural(len(self.blocks), 'block')} proved"
        )
        lines = text_table(("block", "recomputed once", "gradients", "not kept"), rows, right="not kept")
        details = [
            f"{row.name}: {row.proof.status.value}: {row.proof.detail}"
            for row in self.blocks
            if row.proof.status is ProofStatus.FAILED
        ]
        tail = [f"could not be run alone: {some(details, 1)}"] if details else []
        return "\n".join([head, *lines, *tail, *(f"fault: {fault}" for fault in self.faults)])
