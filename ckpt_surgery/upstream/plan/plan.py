"""What a run of `pr` will make: changes grouped into commits, and commits, in order, into series.

Paths are relative to the checkout's top.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ckpt_surgery.codemods import rule_of
from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.codemods.rules import plain_block
from ckpt_surgery.model_patches import family_of
from ckpt_surgery.static.results import FileChange, Note
from ckpt_surgery.upstream.options import GroupBy
from ckpt_surgery.upstream.plan.dependencies import Dependency


@dataclass(frozen=True, slots=True)
class PlannedCommit:
    """The changes of one family, or of several whose repairs only make sense together; those with findings first.

    The line numbers of the `findings` refer to intermediate texts, between the base and the repaired source.
    """

    families: tuple[str, ...]
    changes: tuple[FileChange, ...]
    findings: tuple[Finding, ...]

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(sorted({code for change in self.changes for code in change.codes}))

    @property
    def paths(self) -> frozenset[str]:
        """Return the files that the codemods change."""
        return frozenset(change.path for change in self.changes)

    @property
    def breaking(self) -> list[str]:
        """List the unsafe repairs, without those that another rule of the commit makes safe (`settles`)."""
        settled = {code for rule in self.rules for code in rule_of(rule).settles}
        unsafe = (finding for finding in self.findings if finding.applicability is Applicability.UNSAFE)
        sentences = (f"{f.code} in {f.path}: {f.message}" for f in unsafe if f.code not in settled)
        return list(dict.fromkeys(sentences))

    def plain_blocks(self, family: str) -> tuple[str, ...]:
        """Return the block classes of a family that become checkpointing layers."""
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
    def branch(self) -> str:
        """Return the name of its branch."""
        return f"ckpt-surgery/{self.name}"

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
    """Requested families that no codemod changes."""


def commits_of(
    changes: Sequence[FileChange], findings: Sequence[Finding], links: Iterable[Sequence[str]]
) -> list[PlannedCommit]:
    """Group the changes into commits by family, with linked families in one commit, sorted by name."""
    commits = []
    for families in _connected({family_of(change.path) for change in changes}, links):
        own = tuple(change for change in changes if family_of(change.path) in families)
        repaired = tuple(finding for finding in findings if finding.family in families)
        first = sorted({finding.family for finding in repaired} & families)
        if own:
            commits.append(PlannedCommit((*first, *sorted(families - set(first))), own, repaired))
    return commits


def ordered(commits: Sequence[PlannedCommit], edges: Collection[Dependency]) -> list[PlannedCommit]:
    """Sort the commits so that sources come before what depends on them, and otherwise by name."""

    def depends(commit: PlannedCommit, other: PlannedCommit) -> bool:
        return any(Dependency(source, family) in edges for source in other.families for family in commit.families)

    waiting, done = sorted(commits, key=lambda commit: commit.families), list[PlannedCommit]()
    while waiting:
        free = [one for one in waiting if not any(depends(one, other) for other in waiting if other is not one)]
        ready = (free or waiting)[0]  # in a cycle, the first by name
        waiting.remove(ready)
        done.append(ready)
    return done


def series_of(
    commits: Sequence[PlannedCommit], edges: Collection[Dependency], notes: Sequence[Note], group_by: GroupBy
) -> tuple[PlannedSeries, ...]:
    """Group the commits into series, sorted by name; each note goes to the series that has its file."""
    if group_by is GroupBy.ALL:
        return (PlannedSeries("all", tuple(commits), tuple(notes)),) if commits else ()
    links = [] if group_by is GroupBy.FAMILY else edges
    names = {family for commit in commits for family in commit.families}
    series = []
    for families in _connected(names, [*links, *(commit.families for commit in commits)]):
        members = tuple(commit for commit in commits if commit.families[0] in families)
        # a series is named after the family that most others take classes from
        dependents = {name: sum(edge.source == name for edge in edges) for name in sorted(families)}
        root = max(dependents, key=lambda name: dependents[name])
        name = members[0].families[0] if group_by is GroupBy.FAMILY or not dependents[root] else root
        own = tuple(note for note in notes if family_of(note.path) in families)
        series.append(PlannedSeries(name, members, own))
    return tuple(sorted(series, key=lambda entry: entry.name))


def _connected(names: Iterable[str], links: Iterable[Sequence[str]]) -> list[frozenset[str]]:
    """Group the names into sets, with linked names in one set, sorted by the first name of each."""
    sets = {name: {name} for name in names}
    for link in links:
        joined: set[str] = set()
        for name in link:
            joined |= sets.get(name, {name})
        for name in joined:
            sets[name] = joined
    return sorted({frozenset(joined) for joined in sets.values()}, key=lambda names: min(names))
