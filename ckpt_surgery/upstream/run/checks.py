"""Upstream's converter and fixers applied to our worktrees, and its checkers run on the series and on the base."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.upstream.evidence.results import CheckerResult, CheckStatus, CommandRun
from ckpt_surgery.upstream.run.checkers import (
    CONVERTER,
    COPIES,
    DOCSTRINGS,
    RUNNER,
    Generation,
    UpstreamTools,
    checker_names,
    compares_with_main,
    convert,
    depends_on_ruff,
    fits,
    ruff_version,
    run_checker,
    run_fixer,
)
from ckpt_surgery.upstream.run.git import Git, changed_files, restore, untracked
from ckpt_surgery.upstream.run.interpreter import Interpreter

_ROUNDS = 3
_DURATION = re.compile(r"\(?\b\d+(?:\.\d+)? ?m?s\b\)?")
_MISSING = re.compile(r"(?:No such file or directory: |No module named )'([\w-]+)'")
_NO_MAIN = "it compares with a local branch main, and this checkout has none: git branch main makes one"


def fix(tools: UpstreamTools, python: Interpreter, tree: Path) -> tuple[CommandRun, ...]:
    """Generate what is generated, update copies, mend docstrings and formatting; the runs, in that order.

    The converter and the copies take turns until neither changes anything for the other. The linter and the formatter
    get only the files that differ from the commit, and are left out if ruff is not the pinned one. No cache and no
    backup is left in the tree.

    Raises UpstreamError if the converter cannot work at all: no ruff, or no local branch main.
    """
    if not tools.has_converter:
        return ()
    git = Git(tree)
    version = ruff_version(python, tree)
    _check_converter(tools, python, git, version)
    before = set(untracked(git))
    runs: list[CommandRun] = []
    try:
        for name in (CONVERTER, COPIES) * _ROUNDS:
            state = _difference(git)
            runs.append(run_fixer(tools, python, tree, name))
            if len(runs) > 1 and _difference(git) == state:
                break
        if DOCSTRINGS in checker_names(tools, python, tree):
            runs.append(run_fixer(tools, python, tree, DOCSTRINGS))
    finally:
        for name in set(untracked(git)) - before:
            (tree / name).unlink(missing_ok=True)
    files = [name for name in changed_files(git) if name.endswith(".py") and (tree / name).is_file()]
    if files and fits(tools, version):
        runs += [python.tool("ruff", [*words, *files], tree) for words in (("check", "--fix"), ("format",))]
    return tuple(runs)


def drift(tools: UpstreamTools, python: Interpreter, tree: Path, modular: Sequence[str] = ()) -> tuple[str, ...]:
    """The files of a clean worktree that the fixers change, sorted; the worktree is clean again afterwards.

    The converter looks only at models that differ from main; `modular` names modular files to convert in any case.

    Raises UpstreamError as `fix` does.
    """
    git = Git(tree)
    try:
        fix(tools, python, tree)
        if modular and tools.has_converter:
            convert(python, tree, modular)
        return tuple(changed_files(git))
    finally:
        restore(git)


def check(
    tools: UpstreamTools, python: Interpreter, tree: Path, base: Path, *, step: Callable[[str], None] | None = None
) -> tuple[CheckerResult, ...]:
    """Run every checker that the checkout has on `tree`; one that fails there is run on `base` too.

    `step` is called with each checker's name before it runs. Both trees are left as they were.
    """
    if tools.generation is Generation.NONE:
        reason = f"this checkout has neither {RUNNER} nor utils/check_copies.py and utils/check_modular_conversion.py"
        return (CheckerResult("upstream's checkers", CheckStatus.NOT_RUN, reason=reason),)
    version = ruff_version(python, tree)
    has_main = _has_main(Git(tree))
    results = []
    for name in checker_names(tools, python, tree):
        problem = None
        if depends_on_ruff(name) and not fits(tools, version):
            problem = _ruff_problem(tools, version)
        elif not has_main and compares_with_main(tree, name):
            problem = _NO_MAIN
        if problem is not None:
            results.append(CheckerResult(name, CheckStatus.NOT_RUN, reason=problem))
            continue
        if step:
            step(name)
        results.append(_compared(tools, python, name, tree, base))
    return tuple(results)


def _compared(tools: UpstreamTools, python: Interpreter, name: str, tree: Path, base: Path) -> CheckerResult:
    """The result of a checker on the series, next to the base if it fails."""
    ran = _run(tools, python, tree, name)
    if ran.ok:
        return CheckerResult(name, CheckStatus.OK, ran)
    before = _run(tools, python, base, name)
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


def _run(tools: UpstreamTools, python: Interpreter, tree: Path, name: str) -> CommandRun:
    with _put_back(Git(tree)):
        return run_checker(tools, python, tree, name)


def _ruff_problem(tools: UpstreamTools, version: str | None) -> str:
    """Why the outcome of this ruff would mean nothing."""
    has = f"has ruff {version}" if version else "has no ruff"
    pins = f"setup.py pins {tools.ruff_requirement}" if tools.ruff else "it needs ruff"
    return f"{pins}, and the interpreter {has}: python -m pip install {tools.ruff_requirement}"


def _check_converter(tools: UpstreamTools, python: Interpreter, git: Git, version: str | None) -> None:
    """Raises UpstreamError if the converter would fail whatever it is given."""
    if version is None:
        wanted = tools.ruff_requirement
        raise UpstreamError(
            f"upstream's converter needs {wanted}, and {python.path} has none: {python.path} -m pip install {wanted}"
        )
    if not _has_main(git) and compares_with_main(git.folder, CONVERTER):
        raise UpstreamError(
            "upstream's converter compares with a local branch main, and the checkout has none: "
            "make one where the base is (git branch main BASE)"
        )


def _has_main(git: Git) -> bool:
    return bool(git.asks("rev-parse", "--verify", "--quiet", "refs/heads/main"))


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
