"""Upstream's converter and fixers applied to our worktrees, and its checkers run on the series and on the base."""

from __future__ import annotations

import contextlib
import hashlib
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ckpt_surgery.upstream.evidence.results import CheckerResult, CheckStatus, CommandRun, Commit
from ckpt_surgery.upstream.run.checkers import (
    CONVERTER,
    COPIES,
    DOCSTRINGS,
    RUNNER,
    Generation,
    UpstreamTools,
    check_ruff,
    checker_names,
    convert,
    depends_on_ruff,
    fits,
    looks_at_changes_only,
    ruff_version,
    run_checker,
    run_fixer,
)
from ckpt_surgery.upstream.run.git import Git, changed_files, restore, untracked
from ckpt_surgery.upstream.run.interpreter import PythonInterpreter
from ckpt_surgery.upstream.run.parallel import TreePair

_ROUNDS = 3
_DURATION = re.compile(r"\(?\b\d+(?:\.\d+)? ?m?s\b\)?")
_MISSING = re.compile(r"(?:No such file or directory: |No module named )'([\w-]+)'")


def fix(
    tools: UpstreamTools, python: PythonInterpreter, tree: Path, *, leave_out: Collection[str] = ()
) -> tuple[CommandRun, ...]:
    """Generate what is generated, update copies, mend docstrings and formatting; the runs, in that order.

    The converter and the copies take turns until neither changes anything for the other; `leave_out` names fixers that
    are not run. The linter and the formatter get only the files that differ from the commit, and are left out if ruff
    is not the pinned one. No cache and no backup is left in the tree.

    Raises UpstreamError if the converter cannot work at all, for want of ruff.
    """
    if not tools.has_converter:
        return ()
    git = Git(tree)
    version = check_ruff(tools, python, tree)
    before = set(untracked(git))
    runs: list[CommandRun] = []
    try:
        turns = [name for name in (CONVERTER, COPIES) if name not in leave_out]
        for name in turns * _ROUNDS:
            state = _difference(git)
            runs.append(run_fixer(tools, python, tree, name))
            if len(runs) >= len(turns) and _difference(git) == state:
                break
        if DOCSTRINGS not in leave_out and DOCSTRINGS in checker_names(tools, python, tree):
            runs.append(run_fixer(tools, python, tree, DOCSTRINGS))
    finally:
        for name in set(untracked(git)) - before:
            (tree / name).unlink(missing_ok=True)
    files = [name for name in changed_files(git) if name.endswith(".py") and (tree / name).is_file()]
    if files and fits(tools, version):
        runs += [python.tool("ruff", [*words, *files], tree) for words in (("check", "--fix"), ("format",))]
    return tuple(runs)


def drift(tools: UpstreamTools, python: PythonInterpreter, tree: Path, modular: Sequence[str] = ()) -> dict[str, str]:
    """The files of a worktree at the base that the fixers change, sorted, with the `digest` of what they make of each.

    The worktree is clean again afterwards.

    Fixers that look only at what differs from the base would find nothing, and are not run. The converter is one of
    them; `modular` names modular files to convert in any case.

    Raises UpstreamError as `fix` does.
    """
    git = Git(tree)
    idle = [name for name in (CONVERTER, COPIES, DOCSTRINGS) if looks_at_changes_only(tree, name)]
    try:
        fix(tools, python, tree, leave_out=idle)
        if modular and tools.has_converter:
            convert(python, tree, modular)
        return {name: digest(tree / name) for name in changed_files(git)}
    finally:
        restore(git)


def digest(path: Path) -> str:
    """What tells the contents of a file from others; empty if there is no file."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


@dataclass(frozen=True, slots=True)
class Checkers:
    """Every checker that a checkout has, to be run on the tip of a series; what fails there is run on the base too.

    Attributes:
        commits: those of the series, oldest first. If there are several, the first on which a checker fails is found.
        on_base: what checkers that were run on the base did there. It is kept from one series to the next.
        step: called with each checker's name before it runs.
    """

    tools: UpstreamTools
    python: PythonInterpreter
    commits: Sequence[Commit] = ()
    on_base: dict[str, CommandRun] = field(default_factory=dict)
    step: Callable[[str], None] = lambda _: None

    def tasks(self, tree: Path) -> list[Callable[[TreePair], CheckerResult]]:
        """One for each checker of `tree`, which leaves its trees as they were. Several may run at once in others."""
        if self.tools.generation is Generation.NONE:
            lacks = f"{RUNNER} nor utils/check_copies.py and utils/check_modular_conversion.py"
            reason = f"this checkout has neither {lacks}"
            return [lambda _: CheckerResult("upstream's checkers", CheckStatus.NOT_RUN, reason=reason)]
        version = ruff_version(self.python, tree)
        problem = "" if fits(self.tools, version) else _ruff_problem(self.tools, version)
        names = checker_names(self.tools, self.python, tree)
        return [partial(self._result, name, problem if depends_on_ruff(name) else "") for name in names]

    def _result(self, name: str, problem: str, trees: TreePair) -> CheckerResult:
        if problem:
            return CheckerResult(name, CheckStatus.NOT_RUN, reason=problem)
        self.step(name)
        ran = self._run(trees.series, name)
        if ran.ok:
            return CheckerResult(name, CheckStatus.OK, ran)
        if name not in self.on_base:
            self.on_base[name] = self._run(trees.base, name)
        result = _compared(name, ran, self.on_base[name])
        return replace(result, since=self._since(trees.series, name)) if _is_ours(result) else result

    def _run(self, tree: Path, name: str) -> CommandRun:
        with _put_back(Git(tree)):
            return run_checker(self.tools, self.python, tree, name)

    def _since(self, tree: Path, name: str) -> str:
        """The subject of the first commit on which a checker fails that fails on the last; empty if it is alone."""
        git = Git(tree)

        def fails(commit: Commit) -> bool:
            git.run("checkout", "--quiet", "--detach", commit.sha)
            return not self._run(tree, name).ok

        if len(self.commits) <= 1:
            return ""
        try:
            first = bisect_left(self.commits[:-1], True, key=fails)
        finally:
            git.run("checkout", "--quiet", "--detach", self.commits[-1].sha)
        return self.commits[first].subject


def _compared(name: str, ran: CommandRun, before: CommandRun) -> CheckerResult:
    """What the failure of a checker on the series means, next to what it did on the base."""
    if before.ok:
        return CheckerResult(name, CheckStatus.FAILED, ran, before, "it passes on the base")
    if before.code != ran.code:
        reason = f"it fails on the base too, with exit code {before.code}"
        return CheckerResult(name, CheckStatus.FAILED, ran, before, reason)
    if _DURATION.sub("", before.output) != _DURATION.sub("", ran.output):
        reason = "the base fails too, with another output"
        return CheckerResult(name, CheckStatus.FAILED_DIFFERENTLY, ran, before, reason)
    missing = _MISSING.search(ran.output)
    if missing:
        reason = f"it needs {missing[1]}, which the interpreter does not have"
        return CheckerResult(name, CheckStatus.NOT_RUN, ran, before, reason)
    return CheckerResult(name, CheckStatus.FAILED_BEFORE, ran, before, "the base fails in the same way")


def _is_ours(result: CheckerResult) -> bool:
    """Whether a checker fails because of the series alone."""
    return result.status is CheckStatus.FAILED and result.before is not None and result.before.ok


def _ruff_problem(tools: UpstreamTools, version: str | None) -> str:
    """Why the outcome of this ruff would mean nothing."""
    has = f"has ruff {version}" if version else "has no ruff"
    pins = f"setup.py pins {tools.ruff_requirement}" if tools.ruff else "it needs ruff"
    return f"{pins}, and the interpreter {has}: python -m pip install {tools.ruff_requirement}"


@contextlib.contextmanager
def _put_back(git: Git) -> Iterator[None]:
    """Put back what a checker changes or leaves: a cache, or a half-written file if it was stopped."""
    before = set(changed_files(git))
    try:
        yield
    finally:
        left = sorted(set(changed_files(git)) - before)
        if left:
            restore(git, left)


def _difference(git: Git) -> str:
    """What differs from the commit, as text."""
    return git.run("diff", "--no-ext-diff", "HEAD")
