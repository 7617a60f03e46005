"""Changes put together to commits, commits in order, and commits put together to series."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ckpt_surgery.codemods.finding import Finding
from ckpt_surgery.model_patches import family_of
from ckpt_surgery.static.results import FileChange, Note
from ckpt_surgery.upstream.options import GroupBy
from ckpt_surgery.upstream.plan.dependencies import Dependency
from ckpt_surgery.upstream.plan.plan import PlannedCommit, PlannedSeries


def commits_of(
    changes: Sequence[FileChange], findings: Sequence[Finding], links: Iterable[Sequence[str]]
) -> list[PlannedCommit]:
    """The changes by family, with families that a link joins in one commit; in order of their first names."""
    commits = []
    for families in _connected({family_of(change.path) for change in changes}, links):
        own = tuple(change for change in changes if family_of(change.path) in families)
        repaired = tuple(finding for finding in findings if finding.family in families)
        first = sorted({finding.family for finding in repaired} & families)
        if own:
            commits.append(PlannedCommit((*first, *sorted(families - set(first))), own, repaired))
    return commits


def ordered(commits: Sequence[PlannedCommit], edges: Collection[Dependency]) -> list[PlannedCommit]:
    """The commits with sources before what depends on them; by name if that leaves a choice."""
    waiting, done = sorted(commits, key=lambda commit: commit.families), list[PlannedCommit]()
    while waiting:
        # In a cycle of sources, the first name goes first.
        ready = next((commit for commit in waiting if not _sources(commit, waiting, edges)), waiting[0])
        waiting.remove(ready)
        done.append(ready)
    return done


def series_of(
    commits: Sequence[PlannedCommit], edges: Collection[Dependency], notes: Sequence[Note], group_by: GroupBy
) -> tuple[PlannedSeries, ...]:
    """The commits in series, sorted by name; each note goes to the series that has its file."""
    if group_by is GroupBy.ALL:
        return (PlannedSeries("all", tuple(commits), tuple(notes)),) if commits else ()
    links = [] if group_by is GroupBy.FAMILY else edges
    names = {family for commit in commits for family in commit.families}
    series = []
    for families in _connected(names, [*links, *(commit.families for commit in commits)]):
        members = tuple(commit for commit in commits if commit.families[0] in families)
        first = members[0].families[0]
        name = first if group_by is GroupBy.FAMILY else _root(families, edges) or first
        own = tuple(note for note in notes if family_of(note.path) in families)
        series.append(PlannedSeries(name, members, own))
    return tuple(sorted(series, key=lambda entry: entry.name))


def _connected(names: Iterable[str], links: Iterable[Sequence[str]]) -> list[frozenset[str]]:
    """The names in sets, with linked names in one set; in order of their first names."""
    sets = {name: {name} for name in names}
    for link in links:
        joined: set[str] = set()
        for name in link:
            joined |= sets.get(name, {name})
        for name in joined:
            sets[name] = joined
    return sorted({frozenset(joined) for joined in sets.values()}, key=lambda names: min(names))


def _sources(
    commit: PlannedCommit, others: Iterable[PlannedCommit], edges: Collection[Dependency]
) -> list[PlannedCommit]:
    return [
        other
        for other in others
        if other is not commit
        and any(Dependency(source, family) in edges for source in other.families for family in commit.families)
    ]


def _root(families: Collection[str], edges: Collection[Dependency]) -> str | None:
    """The family that most others have classes from; None if no family has."""
    dependents = {name: sum(edge.source == name for edge in edges) for name in sorted(families)}
    root = max(dependents, key=lambda name: dependents[name])
    return root if dependents[root] else None
