"""What came of a folder: its source, its proof, and what was decided. Pages and lines are made from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ckpt_surgery.adopt.proof import ClassProof, ClassVerdict, is_measured
from ckpt_surgery.adopt.source import SourceResult
from ckpt_surgery.codemods.finding import Finding


class Decision(StrEnum):
    """What became of the repair."""

    NOTHING_TO_REPAIR = "nothing to repair"
    NOT_PROVED = "not proved"
    """The code may not be run, or no class could be measured."""
    WORSE = "worse"
    """After the repair something fails that did not fail before."""
    PROVED = "proved"
    """It makes nothing worse, and waits to be written."""
    WRITTEN = "written"


@dataclass(frozen=True, slots=True)
class Adoption:
    """A folder with all that is known of it. `proofs` is empty where its code was not run."""

    source: SourceResult
    decision: Decision
    proofs: tuple[ClassProof, ...] = ()
    unsafe: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    """Those of this package, torch and transformers, as far as they are installed."""

    @property
    def measured(self) -> bool:
        """Whether there is a verdict on any class."""
        return is_measured([proof.before for proof in self.proofs])

    @property
    def unmeasured(self) -> tuple[Finding, ...]:
        """The repaired findings in classes that no measured model is made of: no proof says anything about them."""
        used = {name for proof in self.proofs for name in proof.uses}
        if not used:
            return ()
        return tuple(finding for finding in self.source.repair.repaired if finding.class_name not in used)

    @property
    def described(self) -> tuple[ClassProof, ...]:
        """The proofs of the code that a model card is about: without a repair that was refused."""
        if self.decision is not Decision.WORSE:
            return self.proofs
        return tuple(ClassProof(proof.before) for proof in self.proofs)

    @property
    def clean(self) -> bool:
        """Whether nothing is left to do: no fault in the source as it is now, and every class proved."""
        faults = self.source.left if self.decision is Decision.WRITTEN else self.source.faults
        fine = (ClassVerdict.OK, ClassVerdict.REPAIRED, ClassVerdict.UNSUPPORTED)
        return not faults and all(proof.verdict in fine for proof in self.proofs)


def decide(source: SourceResult, proofs: Sequence[ClassProof]) -> Decision:
    """Whether the repair of a folder may be written."""
    if not source.patches:
        return Decision.NOTHING_TO_REPAIR
    if not is_measured([proof.before for proof in proofs]):
        return Decision.NOT_PROVED
    worse = any(proof.verdict is ClassVerdict.WORSE for proof in proofs)
    return Decision.WORSE if worse else Decision.PROVED
