"""The test that shows a repair: red on the base, green on the series. It is one of upstream's, or a new one.

What it changes is under `tests/` of the series; the base has the same test files only while they run there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ckpt_surgery.measure.results import Mode
from ckpt_surgery.static.edits import Edit
from ckpt_surgery.upstream.evidence.results import RegressionKind, RegressionTest
from ckpt_surgery.upstream.layout import MODELING_UTILS, TESTS, classes_of, files_of, text_of
from ckpt_surgery.upstream.run.exclusion_edits import apply_removals
from ckpt_surgery.upstream.run.exclusions import Exclusion, generic_tests, listed_exclusions, overrides
from ckpt_surgery.upstream.run.interpreter import PythonInterpreter
from ckpt_surgery.upstream.run.parallel import run_all
from ckpt_surgery.upstream.run.pytest_run import BAD, PytestExit, PytestOutcome, PytestRun, run_pytest
from ckpt_surgery.upstream.run.regression_method import TEST, holders, method, model_tests, with_method
from ckpt_surgery.upstream.run.temporary_edits import (
    COMMON,
    exact_text,
    model_test_files,
    restored,
    tests_of_series,
    write_texts,
)

TIMEOUT = 1200.0
"""Seconds for one run of the checkpointing tests of a family."""

_MODEL_TYPE = re.compile(r"^    model_type(?:\s*:[^=\n]*)?\s*=\s*[\"'](\w+)[\"']", re.M)
_Placed = tuple[str, Exclusion]
"""An exclusion with the path of its file."""


def regression(
    family: str,
    base: Path,
    series: Path,
    python: PythonInterpreter,
    *,
    blocks: Sequence[str],
    modes: Sequence[Mode],
    workers: int = 1,
) -> RegressionTest:
    """Find or make the test of one family that fails without the repair and passes with it.

    Tried in this order: upstream's own tests as they stand, the same without what excludes the family from them, and
    a new test. Test files of `series` are changed if one of the last two succeeds, and not otherwise. Those of `base`
    are put back after each run, also after an interrupt.

    Args:
        family: a folder under `tests/models`.
        base: the top of a tree with the source as it was.
        series: the top of a tree with the repaired source.
        python: has pytest, torch, and what the tests import.
        blocks: classes that are plain modules on the base and checkpointed on the series.
        modes: those in which the repaired models have equal gradients; a new test tries no other.
        workers: how many commands may run at once.

    Raises:
        UpstreamError: the interpreter cannot be started.
    """
    files = model_test_files(series, family)
    if not files:
        folder = f"{TESTS}/{family}/test_modeling_*.py" if (series / TESTS).is_dir() else TESTS
        return RegressionTest(family, RegressionKind.NONE, reason=f"the checkout has no {folder}")
    trial = _FamilyTrial(family, base, series, python, files, workers)
    before, after = trial.both(files, "checkpointing")
    for run in (before, after):
        if run.problem and run.ran.code != PytestExit.NO_TESTS:
            return RegressionTest(family, RegressionKind.NONE, reason=run.problem)
    tests = red_to_green(before, after)
    covered = trial.confirmed(trial.kind(tests), tests)
    return covered or _exception_removed(trial, after) or _added(trial, blocks, modes)


def red_to_green(before: PytestRun, after: PytestRun) -> tuple[str, ...]:
    """The tests that fail in the first run and pass in the second. A skipped test does neither."""
    failed = before.ids(PytestOutcome.FAILED)
    return tuple(name for name in failed if after.outcome(name) is PytestOutcome.PASSED)


@dataclass(frozen=True, slots=True)
class _FamilyTrial:
    """One family, the two trees, and the family's test files (paths from the top of a tree)."""

    family: str
    base: Path
    series: Path
    python: PythonInterpreter
    files: tuple[str, ...]
    workers: int

    def both(self, targets: Sequence[str], names: str = "") -> tuple[PytestRun, PytestRun]:
        """The same tests on the base and on the series, both with the test files of the series."""

        def run(tree: Path) -> PytestRun:
            return run_pytest(self.python, tree, targets, names=names, timeout=TIMEOUT)

        with tests_of_series(self.base, self.series, self.files):
            runs = [partial(run, tree) for tree in (self.base, self.series)]
            before, after = run_all(runs, self.python, self.workers)
        return before, after

    def confirmed(self, kind: RegressionKind, tests: Sequence[str], reason: str = "") -> RegressionTest | None:
        """A run of these tests alone that goes from red to green; None if they do not do so again."""
        if not tests:
            return None
        before, after = self.both(tests)
        if set(red_to_green(before, after)) != set(tests):
            return None
        paths = sorted({name.partition("::")[0] for name in tests})
        return RegressionTest(self.family, kind, tuple(paths), tuple(tests), before.ran, after.ran, reason)

    def kind(self, tests: Sequence[str]) -> RegressionKind:
        """Where the tests that show the repair come from; an earlier commit of the series may have made them."""
        if any(name.endswith(f"::{TEST}") for name in tests):
            return RegressionKind.ADDED
        removed = len(self.exclusions(self.base)) > len(self.exclusions(self.series))
        return RegressionKind.EXCEPTION_REMOVED if removed else RegressionKind.COVERED

    def exclusions(self, tree: Path) -> list[_Placed]:
        """What keeps the generic tests from the family in a tree."""
        common = exact_text(tree, COMMON) if (tree / COMMON).is_file() else ""
        generic = generic_tests(common)
        own = [(path, override) for path in self.files for override in overrides(exact_text(tree, path), generic)]
        return own + [(COMMON, exclusion) for exclusion in listed_exclusions(common, _names(tree, self.family))]

    def none(self, reason: str, runs: tuple[PytestRun, PytestRun] | None = None) -> RegressionTest:
        """There is no regression test; `runs` are those of a test that was tried."""
        before, after = (run.ran for run in runs) if runs else (None, None)
        return RegressionTest(self.family, RegressionKind.NONE, before=before, after=after, reason=reason)


def _exception_removed(trial: _FamilyTrial, untouched: PytestRun) -> RegressionTest | None:
    """Upstream's own tests without what excludes the family; `untouched` is their run on the series before that."""
    excluding = trial.exclusions(trial.series)
    if not excluding:
        return None
    names = " or ".join(sorted({name for _, exclusion in excluding for name in exclusion.tests}))
    originals = {path: exact_text(trial.series, path) for path, _ in excluding}
    with restored(trial.series, originals) as keep:
        write_texts(trial.series, _without(originals, excluding))
        before, after = trial.both(trial.files, names)
        shown = red_to_green(before, after)
        worse = set(after.ids(*BAD)) - set(untouched.ids(*BAD))
        removed = [placed for placed in excluding if _concerns(placed, shown) and not _concerns(placed, worse)]
        tests = [name for name in shown if any(_concerns(placed, [name]) for placed in removed)]
        write_texts(trial.series, originals | _without(originals, removed))
        reason = f"removed: {'; '.join(f'{exclusion.description} ({path})' for path, exclusion in removed)}"
        test = trial.confirmed(RegressionKind.EXCEPTION_REMOVED, tests, reason)
        if test is None:
            return None
        keep()
        return replace(test, paths=tuple(sorted({path for path, _ in removed})))


def _added(trial: _FamilyTrial, blocks: Sequence[str], modes: Sequence[Mode]) -> RegressionTest:
    """A new test in the last test class in which it shows the repair; if there is none, the runs of the first try."""
    sources = {path: exact_text(trial.series, path) for path in trial.files}
    if any(holders(source) for source in sources.values()):
        runs = trial.both(trial.files, TEST)
        return trial.none(_why_not(*runs), runs)
    classes = {path: model_tests(source) for path, source in sources.items()}
    if not any(classes.values()):
        return trial.none(f"no class in {', '.join(trial.files)} has upstream's generic model tests")
    if not modes:
        reason = "verify still finds a fault in every mode, so that no test of all gradients can pass"
        return RegressionTest(trial.family, RegressionKind.IMPOSSIBLE, reason=reason)
    modeling_utils = exact_text(trial.series, MODELING_UTILS)
    tries: list[tuple[PytestRun, PytestRun]] = []
    with restored(trial.series, sources) as keep:
        for tried in dict.fromkeys([tuple(modes), *((mode,) for mode in modes)]):
            text = method(blocks, tried, modeling_utils)
            edited = {path: with_method(source, classes[path], text) for path, source in sources.items()}
            write_texts(trial.series, edited)
            before, after = trial.both(trial.files, TEST)
            tries.append((before, after))
            shown = red_to_green(before, after)
            if shown:
                path, holder, _ = shown[-1].split("::")
                write_texts(trial.series, sources | {path: with_method(sources[path], [holder], text)})
                test = trial.confirmed(RegressionKind.ADDED, shown[-1:])
                if test is not None:
                    keep()
                    return test
            if not after.ids(*BAD):
                break
    return trial.none(_why_not(*tries[0]), tries[0])


def _why_not(before: PytestRun, after: PytestRun) -> str:
    """Why the new test shows nothing, from its runs in every test class of the family."""
    problem = before.problem or after.problem
    if problem:
        return problem
    green, red = before.ids(PytestOutcome.PASSED), after.ids(*BAD)
    results = after.results.values()
    skipped = sorted({result.reason for result in results if result.outcome is PytestOutcome.SKIPPED})
    parts = [f"passes on the base already ({_classes(green)})"] if green else []
    parts += [f"fails on the series too ({_classes(red)})"] if red else []
    parts += [f"is skipped ({'; '.join(skipped)})"] if skipped else []
    why = ", ".join(parts) or "did not do the same twice"
    return f"a test that every block is recomputed, with the same gradients, {why}"


def _classes(tests: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(name.split("::")[1] if "::" in name else name for name in tests))


def _concerns(placed: _Placed, tests: Collection[str]) -> bool:
    """Whether an exclusion keeps any of these tests (pytest ids) from the family."""
    path, exclusion = placed
    for name in tests:
        file, *classes, test = name.split("::")
        if test in exclusion.tests and (path == COMMON or (file == path and classes[-1] in exclusion.classes)):
            return True
    return False


def _without(sources: Mapping[str, str], excluding: Iterable[_Placed]) -> dict[str, str]:
    """The files without these exclusions."""
    by_path: dict[str, list[Edit]] = {}
    for path, exclusion in excluding:
        by_path.setdefault(path, []).extend(exclusion.edits)
    return {path: apply_removals(sources[path], edits) for path, edits in by_path.items()}


def _names(tree: Path, family: str) -> frozenset[str]:
    """The model types and the classes of a family: what a list in the generic tests may name."""
    configurations = files_of(tree, family, "configuration_*.py")
    types = (name for path in configurations for name in _MODEL_TYPE.findall(text_of(path)))
    return frozenset({*types, *classes_of(tree, family)})
