"""One run of pytest in a checkout, and how each test ended, read from its JUnit report.

Which tests are run, and what their outcome means, is decided by `regression` and `family_tests`.
"""

from __future__ import annotations

import re
import shlex
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from pathlib import Path

from ckpt_surgery.upstream.evidence.results import CommandRun
from ckpt_surgery.upstream.run.interpreter import EXIT_TIMED_OUT, TIMEOUT, PythonInterpreter


class PytestOutcome(StrEnum):
    """How one test ended, from harmless to severe."""

    PASSED = "passed"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    ERROR = "error"
    """A failure outside the test's body: in a fixture, or in a file that cannot be imported."""
    FAILED = "failed"


BAD = (PytestOutcome.FAILED, PytestOutcome.ERROR)


class PytestExit(IntEnum):
    """The exit codes of pytest that mean something here."""

    INTERNAL_ERROR = 3
    NO_TESTS = 5


_OPTIONS = ("-q", "-ra", "--tb=short", "--no-header", "--disable-warnings", "-p", "no:cacheprovider")
# The same tests run several times in a tree: without compiled files, imports take more than half of each run.
_COMPILED = {"PYTHONDONTWRITEBYTECODE": ""}
_SEVERITY = list(PytestOutcome)
_MISSING = re.compile(r"No module named '?(\w+)")
_PACKAGES = {"PIL": "pillow", "pytest_subtests": "pytest-subtests", "yaml": "pyyaml"}
_XDIST_HOOK = "unknown hook 'pytest_configure_node'"


@dataclass(frozen=True, slots=True)
class PytestResult:
    """How one test ended; `reason` is the first line of why it failed or was skipped."""

    outcome: PytestOutcome
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PytestRun:
    """One run: the command with its output, and the result of each test by its pytest id, in the order of the run.

    `problem` is a sentence if no test was reached: what is missing, or how pytest ended.
    """

    ran: CommandRun
    results: Mapping[str, PytestResult]
    problem: str | None = None

    @property
    def aborted(self) -> bool:
        """Whether pytest itself failed on the way: the tests after that point have no result."""
        return self.ran.code == PytestExit.INTERNAL_ERROR

    def ids(self, *outcomes: PytestOutcome) -> tuple[str, ...]:
        """The tests that ended in one of these ways."""
        return tuple(name for name, result in self.results.items() if result.outcome in outcomes)

    def outcome(self, name: str) -> PytestOutcome | None:
        """How one test ended; None if it was not run."""
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

    `timeout` is in seconds and for the whole run; a run that is stopped by it has no results.

    Raises:
        UpstreamError: the interpreter cannot be started.
    """
    selected = [*targets, *(["-k", names] if names else [])]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        arguments = ["-m", "pytest", *_OPTIONS, "-o", "log_cli=false", f"--junitxml={report}", *options, *selected]
        shown = shlex.join(["python", "-m", "pytest", *selected])
        ran = python.run(arguments, tree, shown=shown, timeout=timeout, env={**_COMPILED, "TMPDIR": folder})
        results, errors = _read(report, tree) if report.is_file() else ({}, "")
    return PytestRun(ran, results, _problem(ran, results, errors))


def _read(report: Path, tree: Path) -> tuple[dict[str, PytestResult], str]:
    """The result of each test, and the whole text of the errors, which names the modules that are missing."""
    results: dict[str, PytestResult] = {}
    errors = []
    for case in ElementTree.parse(report).iter("testcase"):
        if (case.get("classname"), case.get("name")) == ("pytest", "internal"):
            continue  # stands for pytest's own failure
        name = _node_id(case.get("classname", ""), case.get("name", ""), tree)
        # A subtest has its own entry inside the test's, and a failing teardown a second test of the same name.
        entries = [results[name]] if name in results else []
        entries += [_result(entry) for entry in case if entry.tag in ("failure", "error", "skipped")]
        passed = PytestResult(PytestOutcome.PASSED)
        results[name] = max(entries or [passed], key=lambda result: _SEVERITY.index(result.outcome))
        errors += [entry.text or "" for entry in case if entry.tag == "error"]
    return results, "\n".join(errors)


def _result(entry: ElementTree.Element) -> PytestResult:
    reason = next(iter((entry.get("message") or "").splitlines()), "")
    if entry.tag == "skipped":
        xfailed = entry.get("type") == "pytest.xfail"
        return PytestResult(PytestOutcome.XFAILED if xfailed else PytestOutcome.SKIPPED, reason)
    return PytestResult(PytestOutcome.FAILED if entry.tag == "failure" else PytestOutcome.ERROR, reason)


def _node_id(class_name: str, name: str, tree: Path) -> str:
    """The id that pytest accepts: the report has dots where the id has slashes and colons."""
    parts = class_name.split(".") if class_name else []
    for end in range(len(parts), 0, -1):
        path = "/".join(parts[:end]) + ".py"
        if (tree / path).is_file():
            return "::".join([path, *parts[end:], name])
    module = name.replace(".", "/") + ".py"  # a file that could not be imported
    return module if (tree / module).is_file() else name


def _problem(ran: CommandRun, results: Mapping[str, PytestResult], errors: str) -> str | None:
    if any(result.outcome is not PytestOutcome.ERROR for result in results.values()):
        return None
    if ran.code == EXIT_TIMED_OUT:
        return f"`{ran.command}` did not end in time and was stopped"
    missing = sorted(_packages(errors + ran.output))
    if missing:
        install = f"python -m pip install {' '.join(missing)}"
        return f"`{ran.command}` needs packages that its Python does not have: install them with `{install}`"
    if ran.code == PytestExit.NO_TESTS:
        return f"`{ran.command}` selects no test"
    lines = [line for line in ran.output.splitlines() if line.strip()] or ["no output"]
    last = next((line.removeprefix("E ") for line in reversed(lines) if line.startswith("E ")), lines[-1])
    return f"`{ran.command}` reached no test (exit code {ran.code}): {last.strip()}"


def _packages(text: str) -> Collection[str]:
    """What to install for the modules that an output misses; the hook is one of pytest-xdist's."""
    packages = {_PACKAGES.get(name, name) for name in _MISSING.findall(text) if name not in ("tests", "transformers")}
    return {*packages, "pytest-xdist"} if _XDIST_HOOK in text else packages
