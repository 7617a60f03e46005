"""The test that shows a repair: red on the base, green on the series. It is one of upstream's, or a new one.

What it changes is under `tests/` of the series; the base has the same test files only while they run there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ckpt_surgery.measure.results import Mode
from ckpt_surgery.upstream.evidence.results import RegressionKind, RegressionTest
from ckpt_surgery.upstream.layout import MODELING_UTILS, TESTS, text_of
from ckpt_surgery.upstream.run.exclusions import Exclusion, exclusions_in, without
from ckpt_surgery.upstream.run.interpreter import PythonInterpreter
from ckpt_surgery.upstream.run.pytest_run import (
    BAD,
    NO_TESTS,
    PytestOutcome,
    PytestRun,
    exact_text,
    model_test_files,
    restored,
    run_pytest,
    tests_of_series,
    write_texts,
)
from ckpt_surgery.upstream.run.regression_method import TEST, method, model_tests, with_method


def regression(
    family: str,
    base: Path,
    series: Path,
    python: PythonInterpreter,
    *,
    blocks: Sequence[str],
    modes: Sequence[Mode],
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

    Raises:
        UpstreamError: the interpreter cannot be started.
    """
    files = model_test_files(series, family)
    if not files:
        folder = f"{TESTS}/{family}/test_modeling_*.py" if (series / TESTS).is_dir() else TESTS
        return RegressionTest(family, RegressionKind.NONE, reason=f"the checkout has no {folder}")
    trial = _FamilyTrial(family, base, series, python, files)
    before, after = trial.both(files, "checkpointing")
    for run in (before, after):
        if run.problem and run.ran.code != NO_TESTS:
            return RegressionTest(family, RegressionKind.NONE, reason=run.problem)
    tests = red_to_green(before, after)
    covered = trial.confirmed(RegressionKind.COVERED, tests)
    return covered or _exception_removed(trial, after) or _added(trial, blocks, modes)


def red_to_green(before: PytestRun, after: PytestRun) -> tuple[str, ...]:
    """Return the tests that fail in the first run and pass in the second. A skipped test does neither."""
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

    def both(self, targets: Sequence[str], names: str = "") -> tuple[PytestRun, PytestRun]:
        """Run the same tests on the base and on the series, both with the test files of the series."""
        with tests_of_series(self.base, self.series, self.files):
            before = run_pytest(self.python, self.base, targets, names=names)
            after = run_pytest(self.python, self.series, targets, names=names)
        return before, after

    def confirmed(self, kind: RegressionKind, tests: Sequence[str], reason: str = "") -> RegressionTest | None:
        """Run these tests alone; None if they do not go from red to green again."""
        if not tests:
            return None
        before, after = self.both(tests)
        if set(red_to_green(before, after)) != set(tests):
            return None
        paths = sorted({name.partition("::")[0] for name in tests})
        return RegressionTest(self.family, kind, tuple(paths), tuple(tests), before.ran, after.ran, reason)

    def none(self, reason: str, runs: tuple[PytestRun, PytestRun] | None = None) -> RegressionTest:
        """Say that there is no regression test; `runs` are those of a test that was tried."""
        before, after = (run.ran for run in runs) if runs else (None, None)
        return RegressionTest(self.family, RegressionKind.NONE, before=before, after=after, reason=reason)


def _exception_removed(trial: _FamilyTrial, untouched: PytestRun) -> RegressionTest | None:
    """Try upstream's own tests without what excludes the family; `untouched` is their run on the series with it."""
    excluding = [found for path in trial.files for found in exclusions_in(path, text_of(trial.series / path))]
    if not excluding:
        return None
    names = " or ".join(sorted({exclusion.subject.partition(".")[2] for exclusion in excluding}))
    originals = {exclusion.path: exact_text(trial.series, exclusion.path) for exclusion in excluding}

    def write_without(removed: Sequence[Exclusion]) -> None:
        for path, text in originals.items():
            own = [exclusion for exclusion in removed if exclusion.path == path]
            write_texts(trial.series, {path: without(text, own)})

    with restored(trial.series, originals) as keep:
        write_without(excluding)
        before, after = trial.both(trial.files, names)
        shown = red_to_green(before, after)
        worse = set(after.ids(*BAD)) - set(untouched.ids(*BAD))
        removed = [exclusion for exclusion in excluding if exclusion.concerns(shown) and not exclusion.concerns(worse)]
        tests = [name for name in shown if any(exclusion.concerns([name]) for exclusion in removed)]
        write_without(removed)
        reason = f"removed: {'; '.join(map(str, removed))}"
        test = trial.confirmed(RegressionKind.EXCEPTION_REMOVED, tests, reason)
        if test is None:
            return None
        keep()
        return replace(test, paths=tuple(sorted({exclusion.path for exclusion in removed})))


def _added(trial: _FamilyTrial, blocks: Sequence[str], modes: Sequence[Mode]) -> RegressionTest:
    """Add a new test to the last test class in which it shows the repair; if none does, say why."""
    sources = {path: exact_text(trial.series, path) for path in trial.files}
    if any(TEST in source for source in sources.values()):
        runs = trial.both(trial.files, TEST)
        return trial.none(_why_not(*runs), runs)
    classes = {path: model_tests(source) for path, source in sources.items()}
    if not any(classes.values()):
        return trial.none(f"no class in {', '.join(trial.files)} has upstream's generic model tests")
    if not modes:
        reason = "verify still finds a fault in every mode, so that no test of all gradients can pass"
        return RegressionTest(trial.family, RegressionKind.IMPOSSIBLE, reason=reason)
    text = method(blocks, modes, exact_text(trial.series, MODELING_UTILS))
    with restored(trial.series, sources) as keep:
        write_texts(trial.series, {path: with_method(source, classes[path], text) for path, source in sources.items()})
        runs = trial.both(trial.files, TEST)
        shown = red_to_green(*runs)
        if shown:
            path, holder, _ = shown[-1].split("::")
            write_texts(trial.series, sources | {path: with_method(sources[path], [holder], text)})
            test = trial.confirmed(RegressionKind.ADDED, shown[-1:])
            if test is not None:
                keep()
                return test
    return trial.none(_why_not(*runs), runs)


def _why_not(before: PytestRun, after: PytestRun) -> str:
    """Say why the new test shows nothing, from its runs in every test class of the family."""
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
