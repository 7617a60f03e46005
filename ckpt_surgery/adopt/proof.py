"""Decide on a repair, from what `verify` measured before and after it. Nothing is run here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from ckpt_surgery.adopt.source import SourceResult
from ckpt_surgery.codemods.finding import Finding
from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import LEVELS, Level, Mode, ModeReport, Repair
from ckpt_surgery.text import listed

_MORE = 1.1
"""The factor from which more kept bytes count as worse: another order of operations may change them by less."""


class ClassVerdict(StrEnum):
    """The verdict of the measurements on one class."""

    OK = "ok"
    """Every mode was right before, and is after."""
    REPAIRED = "repaired"
    """Every mode is right after the repair, and one was not before."""
    IMPROVED = "improved"
    """Some faults are gone, some remain, and none is new."""
    FAILED = "failed"
    """It fails, and the repair, if there is one, removes no fault."""
    WORSE = "worse"
    """Something was right before and is not after."""
    UNSUPPORTED = "claims no support"
    NOT_MEASURED = "not measured"


class Decision(StrEnum):
    """The outcome of the repair."""

    NOTHING_TO_REPAIR = "nothing to repair"
    NOT_PROVED = "not proved"
    """The code was not allowed to run, or no class could be measured."""
    WORSE = "worse"
    """After the repair something fails that did not fail before."""
    PROVED = "proved"
    """It makes nothing worse, and was not written yet."""
    WRITTEN = "written"


@dataclass(frozen=True, slots=True)
class ClassProof:
    """The reports on one class before and after the repair; `after` is None if there was nothing to repair.

    `uses` are the names of the classes of all modules of the folder's measured models, as far as they are known.
    """

    before: Report
    after: Report | None = None
    uses: frozenset[str] = frozenset()

    @property
    def final(self) -> Report:
        """Return the report after the repair, or the only one if there was nothing to repair."""
        return self.after or self.before

    @property
    def worse(self) -> dict[Mode, tuple[Level, ...]]:
        """Return the modes that the repair made worse, each with the levels concerned."""
        runs = {run.mode: run for run in self.final.modes}
        levels = {run.mode: _worse_levels(run, runs.get(run.mode)) for run in self.before.modes}
        return {mode: worse for mode, worse in levels.items() if worse}

    @property
    def verdict(self) -> ClassVerdict:
        after = self.final
        if self.worse or (after.status == "not built" != self.before.status):
            return ClassVerdict.WORSE
        if after.status == "not built":
            return ClassVerdict.NOT_MEASURED
        if after.status == "unsupported":
            return ClassVerdict.UNSUPPORTED
        if after.ok:
            return ClassVerdict.OK if self.before.ok else ClassVerdict.REPAIRED
        # a step that does not end counts as a failure at every level
        failed_before, failed_after = (
            {
                (run.mode, level)
                for run in report.modes
                for level in LEVELS
                if "failed" in (run.outcome(level), run.outcome("run"))
            }
            for report in (self.before, after)
        )
        return ClassVerdict.IMPROVED if failed_after < failed_before else ClassVerdict.FAILED

    @property
    def paired(self) -> Report:
        """Return both as one report, which shows the levels before and after side by side."""
        if self.after is None:
            return self.before
        return replace(self.before, repair=Repair(self.after.modes, problem=self.after.problem))


@dataclass(frozen=True, slots=True)
class Adoption:
    """All that is known of a folder. `proofs` is empty if its code was not run."""

    source: SourceResult
    proofs: tuple[ClassProof, ...] = ()
    unsafe: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    """The versions of this package, torch and transformers, as far as they are installed."""
    written: bool = False

    @property
    def measured(self) -> bool:
        """Tell whether there is a verdict on any class."""
        return any(proof.before.status != "not built" for proof in self.proofs)

    @property
    def measured_with(self) -> str:
        """Return the versions in words: "torch 2.13.0 and transformers 5.23.0"."""
        return listed([f"{name.replace('-', '_')} {version}" for name, version in self.versions.items()])

    @property
    def decision(self) -> Decision:
        """Decide whether the repair may be written; say so if it is already."""
        if self.written:
            return Decision.WRITTEN
        if not self.source.patches:
            return Decision.NOTHING_TO_REPAIR
        if not self.measured:
            return Decision.NOT_PROVED
        worse = any(proof.verdict is ClassVerdict.WORSE for proof in self.proofs)
        return Decision.WORSE if worse else Decision.PROVED

    @property
    def unmeasured(self) -> tuple[Finding, ...]:
        """Return the repaired findings in classes that no measured model uses, so that no proof covers them."""
        used = {name for proof in self.proofs for name in proof.uses}
        if not used:
            return ()
        return tuple(finding for finding in self.source.repair.repaired if finding.class_name not in used)

    @property
    def described(self) -> tuple[ClassProof, ...]:
        """Return the proofs of the code that a model card describes: the original if the repair was refused."""
        if self.decision is not Decision.WORSE:
            return self.proofs
        return tuple(ClassProof(proof.before) for proof in self.proofs)

    @property
    def clean(self) -> bool:
        """Tell whether nothing is left to do: no fault in the source as it is now, and every class right."""
        faults = self.source.left if self.decision is Decision.WRITTEN else self.source.faults
        fine = (ClassVerdict.OK, ClassVerdict.REPAIRED, ClassVerdict.UNSUPPORTED)
        return not faults and all(proof.verdict in fine for proof in self.proofs)


def _worse_levels(before: ModeReport, after: ModeReport | None) -> tuple[Level, ...]:
    """Return the levels that were ok and no longer are, or that fail for more blocks or parameters than before.

    If the step did not end before, no other level was known to be ok, so none of them can be worse. In a mode without
    faults more memory is worse too: a loop that checkpoints functions may have no blocks, without which the level
    `cost` is not judged.
    """
    if after is None or (before.outcome("run") == "ok" != after.outcome("run")):
        return ("run",)

    def extent(run: ModeReport, level: Level) -> int:
        """Count the blocks and parameters that the faults of a level name, or the kept bytes for `cost`."""
        if level == "cost" and run.cost is not None:
            return run.cost.kept_bytes
        return len({name for fault in run.faults if fault.level == level for name in fault.subjects})

    worse: list[Level] = []
    for level in LEVELS:
        was, now = before.outcome(level), after.outcome(level)
        is_new = now != "ok" if was == "ok" else now == "failed" and was == "skipped" and before.ok
        is_larger = now == was == "failed" and extent(after, level) > extent(before, level)
        worse += [level] * (is_new or is_larger)
    if before.ok and before.cost and after.cost and after.cost.kept_bytes > _MORE * before.cost.kept_bytes:
        worse += ["cost"] * ("cost" not in worse)
    return tuple(worse)
