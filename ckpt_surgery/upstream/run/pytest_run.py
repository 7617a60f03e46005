"""Run upstream's tests on the series and on the base, and read from the JUnit report how each ended."""

from __future__ import annotations

import shlex
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ckpt_surgery.text import some
from ckpt_surgery.upstream.evidence.results import CheckerResult, CheckStatus, CommandRun
from ckpt_surgery.upstream.layout import TESTS
from ckpt_surgery.upstream.run.interpreter import EXIT_TIMED_OUT, TIMEOUT, PythonInterpreter


class PytestOutcome(StrEnum):
    """The outcome of one test, from harmless to severe."""

    PASSED = "passed"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    ERROR = "error"
    """A failure outside the test's body: in a fixture, or in a file that cannot be imported."""
    FAILED = "failed"


BAD = (PytestOutcome.FAILED, PytestOutcome.ERROR)

NO_TESTS = 5
"""The exit code of pytest if nothing is selected."""

_OPTIONS = ("-q", "-ra", "--tb=short", "--no-header", "--disable-warnings", "-p", "no:cacheprovider")
# the same tests run several times in a tree: without bytecode, imports would take more than half of each run
_COMPILED = {"PYTHONDONTWRITEBYTECODE": ""}
_SEVERITY = list(PytestOutcome)
_OUTCOMES = {"failure": PytestOutcome.FAILED, "error": PytestOutcome.ERROR, "skipped": PytestOutcome.SKIPPED}
"""The outcome by the name of the element in a JUnit report; a test without one passed."""
_FAMILY_TIMEOUT = 3600.0
"""Seconds for one run of all tests of a family."""


@dataclass(frozen=True, slots=True)
class PytestResult:
    """The outcome of one test; `reason` is the first line of why it failed or was skipped."""

    outcome: PytestOutcome
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PytestRun:
    """One run: the command with its output, and the result of each test by its pytest id, in the order of the run."""

    ran: CommandRun
    results: Mapping[str, PytestResult]

    @property
    def problem(self) -> str | None:
        """Say why no test was reached: what is missing, or how pytest ended; None if one was."""
        if any(result.outcome is not PytestOutcome.ERROR for result in self.results.values()):
            return None
        command, code = self.ran.command, self.ran.code
        if code == EXIT_TIMED_OUT:
            return f"`{command}` did not end in time and was stopped"
        if code == NO_TESTS:
            return f"`{command}` selects no test"
        lines = [line for line in self.ran.output.splitlines() if line.strip()] or ["no output"]
        last = next((line.removeprefix("E ") for line in reversed(lines) if line.startswith("E ")), lines[-1])
        return f"`{command}` reached no test (exit code {code}): {last.strip()}"

    def ids(self, *outcomes: PytestOutcome) -> tuple[str, ...]:
        """Return the tests that ended in one of these ways."""
        return tuple(name for name, result in self.results.items() if result.outcome in outcomes)

    def outcome(self, name: str) -> PytestOutcome | None:
        """Return how one test ended; None if it was not run."""
        return self.results[name].outcome if name in self.results else None


def run_pytest(
    python: PythonInterpreter,
    tree: Path,
    targets: Sequence[str],
    *,
    names: str = "",
    options: Sequence[str] = (),
    timeout: float = TIMEOUT,
) -> PytestRun:
    """Run the tests that `targets` (paths and ids, from the top of `tree`) and `names` (pytest's `-k`) select.

    `timeout` is in seconds, for the whole run; a run that exceeds it has no results.

    Raises:
        UpstreamError: the interpreter cannot be started.
    """
    selected = [*targets, *(["-k", names] if names else [])]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        arguments = ["-m", "pytest", *_OPTIONS, "-o", "log_cli=false", f"--junitxml={report}", *options, *selected]
        shown = shlex.join(["python", "-m", "pytest", *selected])
        ran = python.run(arguments, tree, shown=shown, timeout=timeout, env={**_COMPILED, "TMPDIR": folder})
        results = _read(report, tree) if report.is_file() else {}
    return PytestRun(ran, results)


def family_tests(
    family: str, base: Path, series: Path, python: PythonInterpreter, *, proving: Collection[str] = ()
) -> CheckerResult:
    """Run all of upstream's tests of a family on the series; those that fail are run on the base too.

    Upstream skips its slow tests by itself. The result is `FAILED_BEFORE` if each test that fails on the series also
    fails on the base.

    Args:
        proving: the tests that show the repair. They must not fail on the series, whatever they do on the base.

    Raises:
        UpstreamError: the interpreter cannot be started.
    """
    folder = f"{TESTS}/{family}"
    if not (series / folder).is_dir():
        return CheckerResult(folder, CheckStatus.NOT_RUN, reason=f"the checkout has no {folder}")
    options = ("--continue-on-collection-errors",)
    after = run_pytest(python, series, [folder], options=options, timeout=_FAMILY_TIMEOUT)
    bad = after.ids(*BAD)
    if after.problem or not (bad or after.ids(PytestOutcome.PASSED)):
        return CheckerResult(folder, CheckStatus.NOT_RUN, after.ran, reason=after.problem or "all tests are skipped")
    if not bad:
        if after.ran.ok:
            return CheckerResult(folder, CheckStatus.OK, after.ran)
        reason = f"pytest ended early, with exit code {after.ran.code}"
        return CheckerResult(folder, CheckStatus.NOT_RUN, after.ran, reason=reason)
    with tests_of_series(base, series, model_test_files(series, family)):
        before = run_pytest(python, base, bad, options=options, timeout=_FAMILY_TIMEOUT)
    new = [name for name in bad if name in proving or before.outcome(name) not in BAD]
    if new:
        return CheckerResult(folder, CheckStatus.FAILED, after.ran, before.ran, f"on the series alone: {some(new)}")
    return CheckerResult(folder, CheckStatus.FAILED_BEFORE, after.ran, before.ran, f"on the base as well: {some(bad)}")


def model_test_files(tree: Path, family: str) -> tuple[str, ...]:
    """Return the family's test files for torch models, as paths relative to the top of the tree."""
    paths = sorted((tree / TESTS / family).glob("test_modeling_*.py"))
    other = ("test_modeling_tf_", "test_modeling_flax_")
    return tuple(path.relative_to(tree).as_posix() for path in paths if not path.name.startswith(other))


@contextmanager
def tests_of_series(base: Path, series: Path, files: Iterable[str]) -> Iterator[None]:
    """Put the series' text of these test files into the base while the `with` lasts."""
    on_both = [path for path in files if (base / path).is_file()]
    with restored(base, {path: exact_text(base, path) for path in on_both}):
        write_texts(base, {path: exact_text(series, path) for path in on_both})
        yield


@contextmanager
def restored(tree: Path, originals: Mapping[str, str]) -> Iterator[Callable[[], None]]:
    """Restore files to this text at the end, unless the function that it yields was called to keep them."""
    kept: list[bool] = []
    try:
        yield lambda: kept.append(True)
    finally:
        if not kept:
            write_texts(tree, originals)


def exact_text(tree: Path, path: str | Path) -> str:
    """Read a file without changing its line endings."""
    return (tree / path).read_bytes().decode()


def write_texts(tree: Path, texts: Mapping[str, str]) -> None:
    """Write files, by their paths relative to the top of the tree, with the line endings of the texts."""
    for path, text in texts.items():
        (tree / path).write_bytes(text.encode())


def _read(report: Path, tree: Path) -> dict[str, PytestResult]:
    results: dict[str, PytestResult] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        if (case.get("classname"), case.get("name")) == ("pytest", "internal"):
            continue  # stands for pytest's own failure
        name = _node_id(case.get("classname", ""), case.get("name", ""), tree)
        # a subtest has its own entry inside the test's; a failing teardown is a second test of the same name
        entries = [results[name]] if name in results else []
        for entry in case:
            outcome = _OUTCOMES.get(entry.tag)
            if outcome is PytestOutcome.SKIPPED and entry.get("type") == "pytest.xfail":
                outcome = PytestOutcome.XFAILED
            if outcome is not None:
                entries.append(PytestResult(outcome, next(iter((entry.get("message") or "").splitlines()), "")))
        passed = PytestResult(PytestOutcome.PASSED)
        results[name] = max(entries or [passed], key=lambda result: _SEVERITY.index(result.outcome))
    return results


def _node_id(class_name: str, name: str, tree: Path) -> str:
    """Return the id that pytest accepts: the report has dots instead of its slashes and colons."""
    parts = class_name.split(".") if class_name else []
    for end in range(len(parts), 0, -1):
        path = "/".join(parts[:end]) + ".py"
        if (tree / path).is_file():
            return "::".join([path, *parts[end:], name])
    module = name.replace(".", "/") + ".py"  # a file that could not be imported
    return module if (tree / module).is_file() else name
