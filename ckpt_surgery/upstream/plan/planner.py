"""What to repair, decided before anything is written: which families, in which commits, in which order.

Reads source only. All paths that leave this module are relative to the top of the checkout.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from ckpt_surgery.codemods.finding import Applicability, Finding, RuleContext
from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.model_patches import family_of
from ckpt_surgery.static.apply import apply
from ckpt_surgery.static.discover import discover, read_sources
from ckpt_surgery.static.reading import gc_paused
from ckpt_surgery.static.results import Note, Progress
from ckpt_surgery.static.snapshot import select_codes, take_snapshot
from ckpt_surgery.upstream.layout import MODELS, deprecated_of, families_of
from ckpt_surgery.upstream.options import GroupBy
from ckpt_surgery.upstream.plan.dependencies import (
    Dependency,
    dependencies,
    generated_only,
    is_generated,
    required_sources,
)
from ckpt_surgery.upstream.plan.grouping import commits_of, ordered, series_of
from ckpt_surgery.upstream.plan.plan import PlannedCommit, PlannedSeries, SeriesPlan

_FAULTS = (Applicability.SAFE, Applicability.UNSAFE)


def chosen_families(tree: Path, names: Collection[str]) -> frozenset[str]:
    """The families with these names; without names, all that are not deprecated.

    Raises UpstreamError for a name that no model folder has.
    """
    families = families_of(tree)
    for name in names:
        if name not in families:
            near = get_close_matches(name.lower().replace("-", "_"), families, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else "names are folders of src/transformers/models"
            raise UpstreamError(f"--families: there is no model folder {name}: {hint}")
    return frozenset(names or set(families) - deprecated_of(tree))


def plan_series(
    tree: Path,
    families: Collection[str],
    codes: Collection[str],
    group_by: GroupBy,
    *,
    copies_follow: bool,
    progress: Progress | None = None,
) -> SeriesPlan:
    """Decide what to repair in the checkout `tree`, whose files are as on the base.

    Args:
        codes: the rules to apply; none means all.
        copies_follow: whether the checkout has a script that updates `# Copied from` copies.
    """
    files, _ = discover([tree / MODELS])
    sources, _ = read_sources(files)
    with gc_paused():
        snapshot, _ = take_snapshot(sources, jobs=None, cache=True, progress=progress)
        context = snapshot.context(select_codes(codes, ()), include_unsupported=False)
        findings, _ = snapshot.unsuppressed(snapshot.findings(context), {})
        repairable = frozenset(finding.family for finding in findings if finding.repairs)
        planner = _Planner(tree, context, codes, repairable, copies_follow)
        repairs = planner.repairs(families)
        series = series_of(repairs.commits, repairs.edges, repairs.notes, group_by)
        if group_by is GroupBy.FAMILY and len(series) > 1:
            # Each stands on the base by itself: what it copies or derives from is there as on the base.
            series = tuple(planner.alone(entry) for entry in series)
    changed = {family for commit in repairs.commits for family in commit.families}
    return SeriesPlan(
        series=series,
        findings=tuple(planner.inside(finding) for finding in findings if finding.applicability in _FAULTS),
        generated=frozenset(
            planner.relative(path) for path in context.tree.names.checked if is_generated(context, path)
        ),
        idle=tuple(sorted(set(families) - changed)),
    )


@dataclass(frozen=True, slots=True)
class _Repairs:
    """The repairs of some families if nothing else changes: commits in order, and what depends on what."""

    commits: tuple[PlannedCommit, ...]
    edges: frozenset[Dependency]
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True)
class _Planner:
    """Decides about the families of one checkout."""

    tree: Path
    context: RuleContext
    codes: Collection[str]
    repairable: frozenset[str]
    """The families with a finding that can be repaired."""
    copies_follow: bool

    def repairs(self, families: Collection[str]) -> _Repairs:
        """The repairs of these families, and of those without which the converter would overwrite them."""
        chosen, required = frozenset[str](), frozenset(families)
        while required - chosen:
            chosen |= required
            result = apply(
                [self.tree / MODELS],
                unsafe=True,
                write=False,
                select=self.codes,
                families=chosen,
                copies_follow=self.copies_follow,
            )
            required = required_sources(self.context, result, self.repairable)
        edges = dependencies(self.context, result)
        links = [*(tuple(map(family_of, paths)) for paths in result.together)]
        links += generated_only(self.context, result, edges)
        changes = [replace(change, path=self.relative(change.path)) for change in result.changes]
        commits = commits_of(changes, [self.inside(finding) for finding in result.repaired], links)
        notes = tuple(replace(note, path=self.relative(note.path)) for note in result.notes)
        return _Repairs(tuple(ordered(commits, edges)), edges, notes)

    def alone(self, series: PlannedSeries) -> PlannedSeries:
        """The same families, repaired as if no other series were made."""
        repairs = self.repairs(series.families)
        return PlannedSeries(series.name, repairs.commits, repairs.notes)

    def relative(self, path: str) -> str:
        return Path(path).relative_to(self.tree).as_posix()

    def inside(self, finding: Finding) -> Finding:
        """A finding with paths from the top of the checkout."""
        message = finding.message.replace(f"{self.tree}/", "")
        return replace(finding, path=self.relative(finding.path), message=message)
