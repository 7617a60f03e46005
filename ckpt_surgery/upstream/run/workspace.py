"""The resources that all series of a run share: the worktrees, upstream's tools, the plan, reports on the base."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ckpt_surgery.measure.report import Report
from ckpt_surgery.static.results import Progress
from ckpt_surgery.survey import cores
from ckpt_surgery.upstream.evidence.results import CommandRun, ModelRow
from ckpt_surgery.upstream.evidence.rows import rows_of
from ckpt_surgery.upstream.options import PrepareOptions
from ckpt_surgery.upstream.plan.plan import SeriesPlan
from ckpt_surgery.upstream.run.checkers import UpstreamTools
from ckpt_surgery.upstream.run.git import BaseCommit, Git
from ckpt_surgery.upstream.run.parallel import TreePair
from ckpt_surgery.upstream.run.reproduce import verify_tree

_MOST_PAIRS = 4
"""A limit, because each pair has two worktrees, and its commands may take more than a gigabyte."""


@dataclass(slots=True)
class Workspace:
    """The resources that all series of a run share."""

    base: BaseCommit
    base_tree: Git
    """The worktree that stays at the base."""
    series_tree: Git
    """The worktree that the series are made in, one after another."""
    tools: UpstreamTools
    plan: SeriesPlan
    options: PrepareOptions
    progress: Progress | None
    step: Callable[[str], None]
    """Called with a few words on what is being done."""
    drift: frozenset[str] = frozenset()
    """Files that upstream's fixers change on the base already: not ours to change."""
    checkers_on_base: dict[str, CommandRun] = field(default_factory=dict)
    """The runs of upstream's checkers on the base, by name, as far as there were any."""
    _base_reports: dict[str, tuple[Report, ...]] = field(default_factory=dict)
    _more_pairs: list[TreePair] = field(default_factory=list)

    def base_reports(self, families: Collection[str]) -> Mapping[str, tuple[Report, ...]]:
        """Return the reports of `verify` on the base by family, at least for these; each family is run once."""
        missing = sorted(set(families) - set(self._base_reports))
        if missing:
            tree = self.base_tree.folder
            made = verify_tree(self.tools.python, tree, missing, jobs=self.options.jobs, progress=self.progress)
            self._base_reports |= made.by_family
        return self._base_reports

    def is_faulty(self, family: str) -> bool:
        """Tell whether `verify` finds a fault in a family on the base."""
        return any(report.faults for report in self.base_reports([family])[family])

    def rows(
        self, families: Collection[str], modules: Sequence[str] = ()
    ) -> tuple[tuple[ModelRow, ...], CommandRun | None]:
        """Compare the classes of these families on the base and on the series as it is now.

        Returns:
            A row for each class and mode, and the run that imported `modules` of the series, if any are given.
        """
        if not families:
            return (), None
        names, tree = sorted(families), self.series_tree.folder
        before = self.base_reports(names)
        after = verify_tree(
            self.tools.python, tree, names, modules=modules, jobs=self.options.jobs, progress=self.progress
        )
        rows = (row for name in names for row in rows_of(name, before[name], after.by_family[name]))
        return tuple(rows), after.imported

    def pairs(self, most: int) -> list[TreePair]:
        """Return pairs of worktrees, at the base and the tip of the series, for at most `most` parallel commands."""
        count = min(self.options.jobs or cores(), most, _MOST_PAIRS)
        for number in range(len(self._more_pairs) + 2, count + 1):
            pair = TreePair(*(self.base_tree.folder.with_name(f"{name}-{number}") for name in ("base", "series")))
            for place in (pair.base, pair.series):
                self.base_tree.run("worktree", "add", "--detach", "--quiet", str(place), self.base.sha)
            self._more_pairs.append(pair)
        tip = self.series_tree.run("rev-parse", "HEAD")
        more = self._more_pairs[: count - 1]
        for pair in more:
            Git(pair.series).run("checkout", "--quiet", "--detach", "--force", tip)
        return [TreePair(self.base_tree.folder, self.series_tree.folder), *more]
