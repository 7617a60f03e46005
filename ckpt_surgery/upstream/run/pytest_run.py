"""One run of pytest in a checkout, and what became of each test, read from its JUnit report.

Which tests are run, and what their outcome means, is the business of `regression`.
"""

from __future__ import annotations

import re
import shlex
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ckpt_surgery.upstream.evidence.results import Ran
from ckpt_surgery.upstream.run.interpreter import TIMEOUT, Interpreter

Outcome = Literal["passed", "skipped", "xfailed", "error", "failed"]
"""`error` is a failure outside the test's body: a fixture's, or a file that cannot be imported."""

_OPTIONS = ("-q", "-ra", "--tb=short", "--no-header", "--disable-warnings", "-p", "no:cacheprovider")
# the same tests run several times in a tree: without the compiled files, imports are more than half of each run
_COMPILED = {"PYTHONDONTWRITEBYTECODE": ""}
_SEVERITY: tuple[Outcome, ...] = ("passed", "skipped", "xfailed", "error", "failed")
_MISSING = re.compile(r"No module named '?(\w+)")
_PACKAGES = {"PIL": "pillow", "pytest_subtests": "pytest-subtests", "yaml": "pyyaml"}
_BROKE_OFF = 3
_XDIST_HOOK = "unknown hook 'pytest_configure_node'"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one test; `reason` is the first line of why it failed or was skipped."""

    outcome: Outcome
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PytestRun:
    """One run: the command with its output, and the result of each test by its pytest id, in the order of the run.

    `problem` is a sentence where no test was come to: what is missing, or how pytest ended.
    """

    ran: Ran
    results: Mapping[str, Result]
    problem: str = ""

    @property
    def broke_off(self) -> bool:
        """Whether pytest itself failed on the way: tests after that point have no result."""
        return self.ran.code == _BROKE_OFF

    def ids(self, *outcomes: Outcome) -> tuple[str, ...]:
        """The tests that ended in one of these ways."""
        return tuple(name for name, result in self.results.items() if result.outcome in outcomes)

    def outcome(self, name: str) -> Outcome | None:
        """How one test ended; None where it was not run."""
        return self.results[name].outcome if name in self.results else None


def run_pytest(
    python: Interpreter,
    tree: Path,
    targets: Sequence[str],
    *,
    names: str = "",
    options: Sequence[str] = (),
    timeout: float = TIMEOUT,
) -> PytestRun:
    """Run the tests that `targets` (paths and ids, from the top of `tree`) and `names` (pytest's `-k`) select.

    `timeout` is in seconds and for the whole run; one that is cut off by it has no results.

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


def _read(report: Path, tree: Path) -> tuple[dict[str, Result], str]:
    """The result of each test, and the whole text of the errors: they name the modules that are missing."""
    results: dict[str, Result] = {}
    errors = []
    for case in ElementTree.parse(report).iter("testcase"):
        if (case.get("classname"), case.get("name")) == ("pytest", "internal"):
            continue  # stands for pytest's own failure
        name = _node_id(case.get("classname", ""), case.get("name", ""), tree)
        # a subtest has its own entry inside the test's, and a failing teardown a second test of the same name
        found = [results[name]] if name in results else []
        found += [_result(entry) for entry in case if entry.tag in ("failure", "error", "skipped")]
        results[name] = max(found or [Result("passed")], key=lambda one: _SEVERITY.index(one.outcome))
        errors += [entry.text or "" for entry in case if entry.tag == "error"]
    return results, "\n".join(errors)


def _result(entry: ElementTree.Element) -> Result:
    reason = next(iter((entry.get("message") or "").splitlines()), "")
    if entry.tag == "skipped":
        return Result("xfailed" if entry.get("type") == "pytest.xfail" else "skipped", reason)
    return Result("failed" if entry.tag == "failure" else "error", reason)


def _node_id(class_name: str, name: str, tree: Path) -> str:
    """The id that pytest takes back: the report has dots where the id has slashes and colons."""
    parts = class_name.split(".") if class_name else []
    for end in range(len(parts), 0, -1):
        path = "/".join(parts[:end]) + ".py"
        if (tree / path).is_file():
            return "::".join([path, *parts[end:], name])
    module = name.replace(".", "/") + ".py"  # a file that could not be imported
    return module if (tree / module).is_file() else name


def _problem(ran: Ran, results: Mapping[str, Result], errors: str) -> str:
    if any(result.outcome != "error" for result in results.values()):
        return ""
    if ran.code == 124:
        return f"`{ran.command}` did not end in time and was stopped"
    missing = sorted(_packages(errors + ran.output))
    if missing:
        names = " ".join(missing)
        return f"`{ran.command}` needs what its Python lacks: install it with `python -m pip install {names}`"
    if ran.code == 5:
        return f"`{ran.command}` selects no test"
    lines = [line for line in ran.output.splitlines() if line.strip()] or ["no output"]
    told = next((line.removeprefix("E ") for line in reversed(lines) if line.startswith("E ")), lines[-1])
    return f"`{ran.command}` came to no test (exit code {ran.code}): {told.strip()}"


def _packages(text: str) -> Collection[str]:
    """What to install for the modules that an output misses; the hook is one of pytest-xdist's."""
    found = {_PACKAGES.get(name, name) for name in _MISSING.findall(text) if name not in ("tests", "transformers")}
    return {*found, "pytest-xdist"} if _XDIST_HOOK in text else found
