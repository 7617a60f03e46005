"""Two worktrees of one checkout, and what works on them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ckpt_surgery.measure.report import Report
from ckpt_surgery.static.results import Progress
from ckpt_surgery.upstream.evidence.results import ModelRow
from ckpt_surgery.upstream.evidence.rows import rows_of
from ckpt_surgery.upstream.plan.plan import SeriesPlan
from ckpt_surgery.upstream.run.checkers import UpstreamTools
from ckpt_surgery.upstream.run.git import BaseCommit, Git
from ckpt_surgery.upstream.run.interpreter import Interpreter
from ckpt_surgery.upstream.run.reproduce import verify_tree


@dataclass(slots=True)
class Workspace:
    """What every series of a run is made with."""

    base: BaseCommit
    base_tree: Git
    """The worktree that stays at the base."""
    series_tree: Git
    """The worktree that the series are made in, one after another."""
    python: Interpreter
    tools: UpstreamTools
    plan: SeriesPlan
    drift: frozenset[str]
    """Files that upstream's fixers change on the base already: not ours to change."""
    include_unreproduced: bool
    jobs: int | None
    progress: Progress | None
    step: Callable[[str], None]
    """Called with a few words on what is done now."""
    _base_reports: dict[str, tuple[Report, ...]] = field(default_factory=dict)

    def base_reports(self, families: Collection[str]) -> Mapping[str, tuple[Report, ...]]:
        """The reports of `verify` on the base by family, with these families at least; each is run once."""
        missing = sorted(set(families) - set(self._base_reports))
        if missing:
            self._base_reports |= self._verified(self.base_tree.folder, missing)
        return self._base_reports

    def is_faulty(self, family: str) -> bool:
        """Whether `verify` finds a fault in a family on the base."""
        return any(report.faults for report in self.base_reports([family])[family])

    def rows(self, families: Collection[str]) -> tuple[ModelRow, ...]:
        """The classes of these families on the base and on the series as it is now."""
        before, after = self.base_reports(families), self._verified(self.series_tree.folder, sorted(families))
        return tuple(row for family in sorted(families) for row in rows_of(family, before[family], after[family]))

    def _verified(self, tree: Path, families: Sequence[str]) -> dict[str, tuple[Report, ...]]:
        return verify_tree(self.python, tree, families, jobs=self.jobs, progress=self.progress)
