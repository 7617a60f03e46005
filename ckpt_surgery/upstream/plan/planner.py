"""Plan what to repair before anything is written: which families, in which commits, in which order.

Only source is read. All paths that leave this module are relative to the top of the checkout.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from ckpt_surgery.codemods.finding import Finding
from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.model_patches import family_of
from ckpt_surgery.static.apply import apply
from ckpt_surgery.static.discover import discover, read_sources
from ckpt_surgery.static.reading import gc_paused
from ckpt_surgery.static.results import FAULTS, Note, Progress
from ckpt_surgery.static.snapshot import select_codes, take_snapshot
from ckpt_surgery.upstream.layout import DEPRECATED, MODELS, families_of
from ckpt_surgery.upstream.options import GroupBy
from ckpt_surgery.upstream.plan.dependencies import ChangedFamilies, Dependency, is_generated
from ckpt_surgery.upstream.plan.plan import PlannedCommit, PlannedSeries, SeriesPlan, commits_of, ordered, series_of


def chosen_families(tree: Path, names: Collection[str]) -> frozenset[str]:
    """Return the families with these names; without names, all that are not deprecated.

    Raises:
        UpstreamError: no model folder has such a name.
    """
    families = families_of(tree)
    for name in names:
        if name not in families:
            near = get_close_matches(name.lower().replace("-", "_"), families, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else "names are folders of src/transformers/models"
            raise UpstreamError(f"--families: there is no model folder {name}: {hint}")
    deprecated = {entry.name for entry in (tree / MODELS / DEPRECATED).glob("*/")}
    return frozenset(names or set(families) - deprecated)


def plan_series(
    tree: Path,
    families: Collection[str],
    codes: Collection[str],
    group_by: GroupBy,
    *,
    copies_follow: bool,
    progress: Progress | None = None,
) -> SeriesPlan:
    """Decide what to repair in the checkout `tree`, whose files are those of the base.

    Args:
        codes: the rules to apply; none means all.
        copies_follow: whether the checkout has a script that updates `# Copied from` copies.
    """
    files, _ = discover([tree / MODELS])
    sources, _ = read_sources(files)

    def relative(finding: Finding) -> Finding:
        return replace(finding, path=_relative(finding.path, tree), message=finding.message.replace(f"{tree}/", ""))

    def repairs(families: Collection[str]) -> tuple[list[PlannedCommit], frozenset[Dependency], tuple[Note, ...]]:
        """Repair these families and nothing else but what keeps the converter from reverting them.

        Returns:
            The commits in order, the dependencies between families, and notes.
        """
        chosen, required = frozenset[str](), frozenset(families)
        while required - chosen:
            chosen |= required
            result = apply(
                [tree / MODELS],
                unsafe=True,
                write=False,
                select=codes,
                families=chosen,
                copies_follow=copies_follow,
            )
            changed = ChangedFamilies(context, result)
            required = changed.required_sources(repairable)
        edges = changed.dependencies()
        links = [*(tuple(map(family_of, paths)) for paths in result.together)]
        links += changed.generated_only(edges)
        changes = [replace(change, path=_relative(change.path, tree)) for change in result.changes]
        commits = commits_of(changes, list(map(relative, result.repaired)), links)
        notes = tuple(replace(note, path=_relative(note.path, tree)) for note in result.notes)
        return ordered(commits, edges), edges, notes

    with gc_paused():
        snapshot, _ = take_snapshot(sources, jobs=None, cache=True, progress=progress)
        context = snapshot.context(select_codes(codes, ()), include_unsupported=False)
        findings, _ = snapshot.unsuppressed(snapshot.findings(context), {})
        repairable = frozenset(finding.family for finding in findings if finding.repairs)
        commits, edges, notes = repairs(families)
        series = series_of(commits, edges, notes, group_by)
        if group_by is GroupBy.FAMILY and len(series) > 1:
            # each is applied to the base alone: what it copies or inherits from is not repaired there
            alone = [(entry.name, repairs(entry.families)) for entry in series]
            series = tuple(PlannedSeries(name, tuple(own), own_notes) for name, (own, _, own_notes) in alone)
    generated = (_relative(path, tree) for path in context.tree.names.checked if is_generated(context, path))
    return SeriesPlan(
        series=series,
        findings=tuple(relative(finding) for finding in findings if finding.applicability in FAULTS),
        generated=frozenset(generated),
        idle=tuple(sorted(set(families) - {family for commit in commits for family in commit.families})),
    )


def _relative(path: str, tree: Path) -> str:
    return Path(path).relative_to(tree).as_posix()
