"""Find or make the test that shows a repair: it fails on the base and passes on the series.

Only files under `tests/` of the series are changed; the base has the same test files only while they run there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from ckpt_surgery.measure.results import Mode
from ckpt_surgery.upstream.evidence.results import RegressionKind, RegressionTest
from ckpt_surgery.upstream.layout import MODELING_UTILS, TESTS, text_of
from ckpt_surgery.upstream.run.exclusions import Exclusion, without
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

    Tried in this order: upstream's own tests as they are, the same without what excludes the family from them, and a
    new test. Test files of `series` are changed only if one of the last two succeeds. Those of `base` are restored
    after each run, also after an interrupt.

    Args:
        family: a folder under `tests/models`.
        base: the top of a tree with the source as it was.
        series: the top of a tree with the repaired source.
        python: has pytest, torch, and what the tests import.
        blocks: classes that are plain modules on the base and checkpointed on the series.
        modes: those in which the repaired models have the right gradients; a new test tries no others.

    Raises:
        UpstreamError: the interpreter cannot be started.
    """
    files = model_test_files(series, family)
    if not files:
        folder = f"{TESTS}/{family}/test_modeling_*.py" if (series / TESTS).is_dir() else TESTS
        return RegressionTest(family, RegressionKind.NONE, reason=f"the checkout has no {folder}")
    trial = _FamilyTrial(family, base, series, python, files)
    runs = trial.run_on_both(files, "checkpointing")
    for run in runs:
        if run.problem and run.ran.code != NO_TESTS:
            return RegressionTest(family, RegressionKind.NONE, reason=run.problem)
    covered = trial.confirmed(RegressionKind.COVERED, runs.red_to_green)
    return covered or trial.exception_removed(runs.after) or trial.added(blocks, modes)


class _Runs(NamedTuple):
    """The same tests on the base and on the series."""

    before: PytestRun
    after: PytestRun

    @property
    def red_to_green(self) -> tuple[str, ...]:
        """Return the tests that fail on the base and pass on the series. A skipped test does neither."""
        failed = self.before.ids(PytestOutcome.FAILED)
        return tuple(name for name in failed if self.after.outcome(name) is PytestOutcome.PASSED)

    @property
    def why_not(self) -> str:
        """Say why a new test does not show the repair; these are its runs in every test class of the family."""
        problem = self.before.problem or self.after.problem
        if problem:
            return problem
        green, red = (
            ", ".join(dict.fromkeys(name.split("::")[1] if "::" in name else name for name in tests))
            for tests in (self.before.ids(PytestOutcome.PASSED), self.after.ids(*BAD))
        )
        results = self.after.results.values()
        skipped = sorted({result.reason for result in results if result.outcome is PytestOutcome.SKIPPED})
        parts = [f"passes on the base already ({green})"] if green else []
        parts += [f"fails on the series too ({red})"] if red else []
        parts += [f"is skipped ({'; '.join(skipped)})"] if skipped else []
        why = ", ".join(parts) or "did not do the same twice"
        return f"a test that every block is recomputed, with the same gradients, {why}"


@dataclass(frozen=True, slots=True)
class _FamilyTrial:
    """One family, the two trees, and the family's test files (paths relative to the top of a tree)."""

    family: str
    base: Path
    series: Path
    python: PythonInterpreter
    files: tuple[str, ...]

    def run_on_both(self, targets: Sequence[str], names: str = "") -> _Runs:
        """Run the same tests on the base and on the series, both with the test files of the series."""
        with tests_of_series(self.base, self.series, self.files):
            before = run_pytest(self.python, self.base, targets, names=names)
            after = run_pytest(self.python, self.series, targets, names=names)
        return _Runs(before, after)

    def confirmed(self, kind: RegressionKind, tests: Sequence[str], reason: str = "") -> RegressionTest | None:
        """Run these tests alone; None if they do not fail and then pass again."""
        if not tests:
            return None
        runs = self.run_on_both(tests)
        if set(runs.red_to_green) != set(tests):
            return None
        paths = sorted({name.partition("::")[0] for name in tests})
        return RegressionTest(self.family, kind, tuple(paths), tuple(tests), runs.before.ran, runs.after.ran, reason)

    def none(self, reason: str, runs: _Runs | None = None) -> RegressionTest:
        """Return that there is no regression test, and why; `runs` are those of a test that was tried."""
        before, after = (run.ran for run in runs) if runs else (None, None)
        return RegressionTest(self.family, RegressionKind.NONE, before=before, after=after, reason=reason)

    def exception_removed(self, untouched: PytestRun) -> RegressionTest | None:
        """Try upstream's own tests without what excludes the family; `untouched` is their run before that."""
        excluding = [found for path in self.files for found in Exclusion.found_in(path, text_of(self.series / path))]
        if not excluding:
            return None
        names = " or ".join(sorted({exclusion.subject.partition(".")[2] for exclusion in excluding}))
        originals = {exclusion.path: exact_text(self.series, exclusion.path) for exclusion in excluding}

        def write_without(removed: Sequence[Exclusion]) -> None:
            for path, text in originals.items():
                own = [exclusion for exclusion in removed if exclusion.path == path]
                write_texts(self.series, {path: without(text, own)})

        with restored(self.series, originals) as keep:
            write_without(excluding)
            runs = self.run_on_both(self.files, names)
            shown = runs.red_to_green
            worse = set(runs.after.ids(*BAD)) - set(untouched.ids(*BAD))
            removed = [entry for entry in excluding if entry.concerns(shown) and not entry.concerns(worse)]
            tests = [name for name in shown if any(exclusion.concerns([name]) for exclusion in removed)]
            write_without(removed)
            reason = f"removed: {'; '.join(map(str, removed))}"
            test = self.confirmed(RegressionKind.EXCEPTION_REMOVED, tests, reason)
            if test is None:
                return None
            keep()
            return replace(test, paths=tuple(sorted({exclusion.path for exclusion in removed})))

    def added(self, blocks: Sequence[str], modes: Sequence[Mode]) -> RegressionTest:
        """Add a new test to the last test class in which it shows the repair; if none does, say why."""
        sources = {path: exact_text(self.series, path) for path in self.files}
        if any(TEST in source for source in sources.values()):
            runs = self.run_on_both(self.files, TEST)
            return self.none(runs.why_not, runs)
        classes = {path: model_tests(source) for path, source in sources.items()}
        if not any(classes.values()):
            return self.none(f"no class in {', '.join(self.files)} has upstream's generic model tests")
        if not modes:
            reason = "verify still finds a fault in every mode, so that no test of all gradients can pass"
            return RegressionTest(self.family, RegressionKind.IMPOSSIBLE, reason=reason)
        text = method(blocks, modes, exact_text(self.series, MODELING_UTILS))
        with restored(self.series, sources) as keep:
            write_texts(
                self.series, {path: with_method(source, classes[path], text) for path, source in sources.items()}
            )
            runs = self.run_on_both(self.files, TEST)
            shown = runs.red_to_green
            if shown:
                path, holder, _ = shown[-1].split("::")
                write_texts(self.series, sources | {path: with_method(sources[path], [holder], text)})
                test = self.confirmed(RegressionKind.ADDED, shown[-1:])
                if test is not None:
                    keep()
                    return test
        return self.none(runs.why_not, runs)
