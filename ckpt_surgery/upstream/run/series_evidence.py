"""The evidence for a finished series, gathered from its build, upstream's checkers and its tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from ckpt_surgery.codemods import RULES
from ckpt_surgery.upstream.evidence.results import CheckerResult, CheckStatus, Evidence, SeriesStatus, Sibling
from ckpt_surgery.upstream.evidence.signatures import changed_signatures
from ckpt_surgery.upstream.layout import TESTS
from ckpt_surgery.upstream.plan.plan import PlannedSeries
from ckpt_surgery.upstream.run.git import Git
from ckpt_surgery.upstream.run.parallel import TreePair, run_all_in_trees
from ckpt_surgery.upstream.run.pytest_run import family_tests
from ckpt_surgery.upstream.run.series import NO_FAULT, NO_REPAIR, SeriesBuild
from ckpt_surgery.upstream.run.workspace import Workspace


def gather_evidence(
    space: Workspace, planned: PlannedSeries, build: SeriesBuild, versions: Mapping[str, str]
) -> Evidence:
    """Gather the evidence, without judging it: the status is "not ready" until `judged` decides."""
    files = sorted({file for commit in build.commits for file in commit.files})
    codes = {code for commit in build.commits for code in commit.rules}
    base, series = space.base_tree.folder, space.series_tree.folder
    return Evidence(
        group=planned.name,
        branch=planned.branch,
        base=space.base.sha,
        base_name=space.base.name,
        status=SeriesStatus.NOT_READY,
        reasons=(),
        commits=tuple(build.commits),
        rows=build.rows,
        checks=_checks(space, planned, build),
        signatures=tuple(change for file in files for change in changed_signatures(base, series, file)),
        regressions=tuple(build.regressions),
        siblings=_siblings(space, planned, build),
        versions=versions,
        command=space.options.command,
        unsafe=tuple(build.unsafe),
        notes=tuple(map(str, planned.notes)),
        coordination=space.options.coordination,
        rules={rule.code: rule.summary for rule in RULES if rule.code in codes},
    )


def _checks(space: Workspace, planned: PlannedSeries, build: SeriesBuild) -> tuple[CheckerResult, ...]:
    """Run upstream's checkers, and its tests of every family in the series, as many in parallel as possible."""

    def tests_of(family: str, trees: TreePair) -> CheckerResult:
        space.step(f"{planned.name}: upstream's tests of {family}")
        proving = [name for test in build.regressions if test.family == family for name in test.tests]
        try:
            return family_tests(family, trees.base, trees.series, space.tools.python, proving=proving)
        finally:
            Git(trees.base).restore()
            Git(trees.series).restore()

    checkers = space.tools.checker_tasks(
        space.series_tree.folder,
        on_base=space.checkers_on_base,
        step=lambda name: space.step(f"{planned.name}: upstream's checker {name}"),
    )
    tests = [partial(tests_of, family) for family in sorted(build.families)]
    missing = []
    if not (space.series_tree.folder / TESTS).is_dir():
        reason = f"this checkout has no {TESTS}"
        tests, missing = [], [CheckerResult("upstream's tests", CheckStatus.NOT_RUN, reason=reason)]
    # tests start first, because they take longest
    tasks: list[Callable[[TreePair], CheckerResult]] = [*tests, *checkers]
    results = run_all_in_trees(tasks, space.pairs(len(tasks)), space.tools.python)
    return (*results[len(tests) :], *results[: len(tests)], *missing)


def _siblings(space: Workspace, planned: PlannedSeries, build: SeriesBuild) -> tuple[Sibling, ...]:
    """List every family with findings of the same rules, and why it is or is not in this series."""
    others = {name: series.name for series in space.plan.series if series != planned for name in series.families}

    def reason(family: str) -> str:
        if family in build.families:
            return "changed in this series"
        if family in build.left_out:
            return f"left out: {build.left_out[family]}"
        if family in others and not space.options.include_unreproduced and not space.is_faulty(family):
            return f"left out: {NO_FAULT}"
        if family in others:
            return f"belongs to the series {others[family]}, if its repair can be shown"
        if family in space.plan.idle:
            return NO_REPAIR
        return "not asked for" if space.options.families else "not asked for: the model is deprecated"

    codes = {code for commit in build.commits for code in commit.rules}
    findings = [finding for finding in space.plan.findings if finding.code in codes]
    siblings = []
    for family in sorted({finding.family for finding in findings}):
        own = [finding for finding in findings if finding.family == family]
        rules = tuple(sorted({finding.code for finding in own}))
        places = tuple(f"{finding.path}:{finding.line}" for finding in own)
        siblings.append(Sibling(family, rules, places, family in build.families, reason(family)))
    return tuple(siblings)
