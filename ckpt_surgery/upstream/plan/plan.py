"""What a run of `pr` will make: series of commits, as plain frozen data. Paths are relative to the checkout's top."""

from __future__ import annotations

from dataclasses import dataclass

from ckpt_surgery.codemods.finding import Finding
from ckpt_surgery.codemods.rules import plain_block
from ckpt_surgery.static.results import FileChange, Note


@dataclass(frozen=True, slots=True)
class PlannedCommit:
    """The changes of one family, or of several whose repairs only make sense together; the first gives the name.

    The lines of the `findings` refer to intermediate texts, between the base and the repaired source.
    """

    families: tuple[str, ...]
    changes: tuple[FileChange, ...]
    findings: tuple[Finding, ...]

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(sorted({code for change in self.changes for code in change.codes}))

    @property
    def paths(self) -> frozenset[str]:
        """The files that the codemods change."""
        return frozenset(change.path for change in self.changes)

    def plain_blocks(self, family: str) -> tuple[str, ...]:
        """The block classes of a family that become checkpointing layers."""
        findings = (
            finding for finding in self.findings if finding.code == plain_block.RULE.code and finding.family == family
        )
        return tuple(sorted({finding.class_name for finding in findings}))


@dataclass(frozen=True, slots=True)
class PlannedSeries:
    """One series: its name, and its commits in order. `notes` are those of the codemods."""

    name: str
    commits: tuple[PlannedCommit, ...]
    notes: tuple[Note, ...] = ()

    @property
    def families(self) -> tuple[str, ...]:
        return tuple(family for commit in self.commits for family in commit.families)


@dataclass(frozen=True, slots=True)
class SeriesPlan:
    """All series of one run. `findings` are those of the whole checkout."""

    series: tuple[PlannedSeries, ...]
    findings: tuple[Finding, ...]
    generated: frozenset[str]
    """The files that are generated from modular ones."""
    idle: tuple[str, ...]
    """Families that were asked for and that no codemod changes."""
