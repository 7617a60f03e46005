"""The test that shows a repair: red on the base, green on the series. It is found in upstream's tests or made.

What it changes is under `tests/` of the series; the base gets the same test files only while they run there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ckpt_surgery.measure.results import Mode
from ckpt_surgery.text import some
from ckpt_surgery.upstream.evidence.results import Check, Regression, RegressionKind
from ckpt_surgery.upstream.plan.layout import COMMON_TESTS, MODELING_UTILS, TESTS, classes_of, files_of, text_of
from ckpt_surgery.upstream.run.interpreter import Interpreter
from ckpt_surgery.upstream.run.pytest_run import PytestRun, run_pytest
from ckpt_surgery.upstream.run.regression_method import TEST, holders, method, model_tests, with_method
from ckpt_surgery.upstream.run.regression_source import Excuse, exclusions, generic_tests, overrides, without

COMMON = COMMON_TESTS.as_posix()
TIMEOUT = 1200.0
"""Seconds for one run of the checkpointing tests of a family."""
FAMILY_TIMEOUT = 3600.0
"""Seconds for one run of all tests of a family."""

_MODEL_TYPE = re.compile(r"^    model_type(?:\s*:[^=\n]*)?\s*=\s*[\"'](\w+)[\"']", re.M)
_NO_TESTS = 5


def regression(
    family: str, base: Path, series: Path, python: Interpreter, *, blocks: Sequence[str], modes: Sequence[Mode]
) -> Regression:
    """Find or make the test of one family that fails without the repair and passes with it.

    Tried in this order: upstream's own tests as they stand, the same without what excuses the family from them, and
    a test of our own. Test files of `series` are changed where the last two succeed, nothing is otherwise. Those of
    `base` are put back after each run, also when one is interrupted.

    Args:
        family: a folder under `tests/models`.
        base: the top of a tree with the source as it was.
        series: the top of a tree with the repaired source.
        python: has pytest, torch, and what the tests import.
        blocks: classes that the base has as plain modules and the series checkpoints.
        modes: those in which the repaired models have no fault left; the test of our own tries no other.

    Raises:
        UpstreamError: the interpreter cannot be started.
    """
    files = _test_files(series, family)
    if not files:
        folder = f"{TESTS}/{family}/test_modeling_*.py" if (series / TESTS).is_dir() else TESTS
        return Regression(family, "none", reason=f"the checkout has no {folder}")
    trial = _Trial(family, base, series, python, files)
    before, after = trial.both(files, "checkpointing")
    problem = next((run.problem for run in (before, after) if run.problem and run.ran.code != _NO_TESTS), "")
    if problem:
        return Regression(family, "none", reason=problem)
    shown = red_to_green(before, after)
    covered = trial.confirmed(trial.kind(shown), shown)
    return covered or _exception_removed(trial, after) or _added(trial, blocks, modes)


def family_tests(family: str, base: Path, series: Path, python: Interpreter, *, shown: Collection[str] = ()) -> Check:
    """Run all of upstream's tests of a family on the series; those that fail are run on the base too.

    Upstream skips its slow tests by itself. "failed before too" means that each test that fails on the series fails
    on the base. The tests in `shown` are those that the series repairs: they may not fail, whatever they do there.

    Raises:
        UpstreamError: the interpreter cannot be started.
    """
    folder = f"{TESTS}/{family}"
    if not (series / folder).is_dir():
        return Check(folder, "not run", reason=f"the checkout has no {folder}")
    options = ("--continue-on-collection-errors",)
    after = run_pytest(python, series, [folder], options=options, timeout=FAMILY_TIMEOUT)
    bad = after.ids("failed", "error")
    if after.problem or not (bad or after.ids("passed")):
        return Check(folder, "not run", after.ran, reason=after.problem or "all of them are skipped")
    if not bad and not after.broke_off:
        if after.ran.ok:
            return Check(folder, "ok", after.ran)
        return Check(folder, "not run", after.ran, reason=f"pytest ended early, with exit code {after.ran.code}")
    with _lent(base, series, _test_files(series, family)):
        targets = [folder] if after.broke_off else bad
        before = run_pytest(python, base, targets, options=options, timeout=FAMILY_TIMEOUT)
    own = ["pytest itself, which breaks off"] if after.broke_off else []
    new = [name for name in bad if name in shown or before.outcome(name) not in ("failed", "error")]
    new += own if not before.broke_off else []
    if new:
        return Check(folder, "failed", after.ran, before.ran, f"on the series alone: {some(new)}")
    return Check(folder, "failed before too", after.ran, before.ran, f"on the base as well: {some([*own, *bad])}")


def red_to_green(before: PytestRun, after: PytestRun) -> tuple[str, ...]:
    """The tests that fail in the first run and pass in the second. Skipped, excused or broken off is neither."""
    return tuple(name for name in before.ids("failed") if after.outcome(name) == "passed")


@dataclass(frozen=True, slots=True)
class _Trial:
    """One family, the two trees, and the family's test files (paths from the top of a tree)."""

    family: str
    base: Path
    series: Path
    python: Interpreter
    files: tuple[str, ...]

    def both(self, targets: Sequence[str], names: str = "") -> tuple[PytestRun, PytestRun]:
        """The same tests on the base and on the series, both as the test files of the series have them."""
        with _lent(self.base, self.series, self.files):
            before = run_pytest(self.python, self.base, targets, names=names, timeout=TIMEOUT)
        return before, run_pytest(self.python, self.series, targets, names=names, timeout=TIMEOUT)

    def confirmed(self, kind: RegressionKind, tests: Sequence[str], reason: str = "") -> Regression | None:
        """A run of those tests alone that went from red to green; None where they do not do so again."""
        if not tests:
            return None
        before, after = self.both(tests)
        if set(red_to_green(before, after)) != set(tests):
            return None
        paths = sorted({name.partition("::")[0] for name in tests})
        return Regression(self.family, kind, tuple(paths), tuple(tests), before.ran, after.ran, reason)

    def kind(self, tests: Sequence[str]) -> RegressionKind:
        """What tests are that show the repair as the series has them: they may be the work of an earlier run."""
        if any(name.endswith(f"::{TEST}") for name in tests):
            return "added"
        theirs, ours = self.excuses(self.base), self.excuses(self.series)
        return "exception removed" if len(theirs) > len(ours) else "covered"

    def excuses(self, tree: Path) -> list[tuple[str, Excuse]]:
        """What keeps the generic tests from the family in a tree, each with the path of its file."""
        common = _text(tree, COMMON) if (tree / COMMON).is_file() else ""
        generic = generic_tests(common)
        found = [(path, one) for path in self.files for one in overrides(_text(tree, path), generic)]
        return found + [(COMMON, one) for one in exclusions(common, _names(tree, self.family))]


def _exception_removed(trial: _Trial, untouched: PytestRun) -> Regression | None:
    """Upstream's own tests without what excuses the family; `untouched` is their run on the series before that."""
    found = trial.excuses(trial.series)
    if not found:
        return None
    names = " or ".join(sorted({name for _, excuse in found for name in excuse.tests}))
    originals = {path: _text(trial.series, path) for path, _ in found}
    with _restored(trial.series, originals) as keep:
        _write(trial.series, _freed(originals, found))
        before, after = trial.both(trial.files, names)
        shown = red_to_green(before, after)
        worse = set(after.ids("failed", "error")) - set(untouched.ids("failed", "error"))
        good = [(path, one) for path, one in found if _concerns(path, one, shown) and not _concerns(path, one, worse)]
        tests = [name for name in shown if any(_concerns(path, one, [name]) for path, one in good)]
        _write(trial.series, originals | _freed(originals, good))
        reason = f"taken out: {'; '.join(f'{one.told} ({path})' for path, one in good)}"
        made = trial.confirmed("exception removed", tests, reason)
        if made is None:
            return None
        keep()
        return replace(made, paths=tuple(sorted({path for path, _ in good})))


def _added(trial: _Trial, blocks: Sequence[str], modes: Sequence[Mode]) -> Regression:
    """A test of our own in the last test class where it shows the repair; the runs of a failed try where in none."""
    sources = {path: _text(trial.series, path) for path in trial.files}
    if any(holders(source) for source in sources.values()):
        before, after = trial.both(trial.files, TEST)
        return Regression(trial.family, "none", before=before.ran, after=after.ran, reason=_why_not(before, after))
    classes = {path: model_tests(source) for path, source in sources.items()}
    if not any(classes.values()):
        reason = f"no class in {', '.join(trial.files)} has upstream's generic model tests"
        return Regression(trial.family, "none", reason=reason)
    if not modes:
        reason = "verify finds a fault in every mode after the repair too: no test of all gradients can pass"
        return Regression(trial.family, "none", reason=reason)
    modeling_utils = _text(trial.series, MODELING_UTILS)
    tries: list[tuple[PytestRun, PytestRun]] = []
    with _restored(trial.series, sources) as keep:
        for some in dict.fromkeys([tuple(modes), *((mode,) for mode in modes)]):
            text = method(blocks, some, modeling_utils)
            _write(trial.series, {path: with_method(source, classes[path], text) for path, source in sources.items()})
            before, after = trial.both(trial.files, TEST)
            tries.append((before, after))
            shown = red_to_green(before, after)
            if shown:
                path, holder, _ = shown[-1].split("::")
                _write(trial.series, sources | {path: with_method(sources[path], [holder], text)})
                made = trial.confirmed("added", shown[-1:])
                if made is not None:
                    keep()
                    return made
            if not after.ids("failed", "error"):
                break
    before, after = tries[0]
    return Regression(trial.family, "none", before=before.ran, after=after.ran, reason=_why_not(before, after))


def _why_not(before: PytestRun, after: PytestRun) -> str:
    """Why our own test shows nothing, from its runs in every test class of the family."""
    problem = before.problem or after.problem
    if problem:
        return problem
    green, red = before.ids("passed"), after.ids("failed", "error")
    skipped = sorted({result.reason for result in after.results.values() if result.outcome == "skipped"})
    parts = [f"passes on the base already ({_classes(green)})"] if green else []
    parts += [f"fails on the series too ({_classes(red)})"] if red else []
    parts += [f"is skipped ({'; '.join(skipped)})"] if skipped else []
    told = ", ".join(parts) or "did not do the same twice"
    return f"a test that every block is recomputed, with the same gradients, {told}"


def _classes(tests: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(name.split("::")[1] if "::" in name else name for name in tests))


def _concerns(path: str, excuse: Excuse, tests: Collection[str]) -> bool:
    """Whether an excuse is one for any of these tests (pytest ids)."""
    for name in tests:
        file, *classes, test = name.split("::")
        if test in excuse.tests and (path == COMMON or (file == path and classes[-1] in excuse.classes)):
            return True
    return False


def _freed(sources: Mapping[str, str], excuses: Iterable[tuple[str, Excuse]]) -> dict[str, str]:
    """The files without these excuses."""
    by_path: dict[str, list[Excuse]] = {}
    for path, excuse in excuses:
        by_path.setdefault(path, []).append(excuse)
    return {path: without(sources[path], those) for path, those in by_path.items()}


def _names(tree: Path, family: str) -> frozenset[str]:
    """The model types and the classes of a family: what a list in the generic tests may name."""
    configurations = files_of(tree, family, "configuration_*.py")
    types = (name for path in configurations for name in _MODEL_TYPE.findall(text_of(path)))
    return frozenset({*types, *classes_of(tree, family)})


def _test_files(tree: Path, family: str) -> tuple[str, ...]:
    """The family's tests of models in torch, as paths from the top of the tree."""
    found = sorted((tree / TESTS / family).glob("test_modeling_*.py"))
    other = ("test_modeling_tf_", "test_modeling_flax_")
    return tuple(path.relative_to(tree).as_posix() for path in found if not path.name.startswith(other))


@contextmanager
def _lent(base: Path, series: Path, files: Iterable[str]) -> Iterator[None]:
    """The base with the series' own text of these test files and of the generic tests."""
    both = [path for path in (COMMON, *files) if (base / path).is_file() and (series / path).is_file()]
    theirs, ours = ({path: _text(tree, path) for path in both} for tree in (base, series))
    changed = [path for path in both if theirs[path] != ours[path]]
    with _restored(base, {path: theirs[path] for path in changed}):
        _write(base, {path: ours[path] for path in changed})
        yield


@contextmanager
def _restored(tree: Path, originals: Mapping[str, str]) -> Iterator[Callable[[], None]]:
    """Puts files back to this text at the end, however it comes, unless what is handed out was called."""
    kept: list[bool] = []
    try:
        yield lambda: kept.append(True)
    finally:
        if not kept:
            _write(tree, originals)


def _text(tree: Path, path: str | Path) -> str:
    """The text of a file with the line ends that it has."""
    return (tree / path).read_bytes().decode()


def _write(tree: Path, texts: Mapping[str, str]) -> None:
    for path, text in texts.items():
        (tree / path).write_bytes(text.encode())
