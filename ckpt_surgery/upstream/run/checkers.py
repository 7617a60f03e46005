"""Run upstream's own converter, fixers and checkers in our worktrees, as far as a checkout has them.

Older checkouts have one script for each, later ones a runner for all (`utils/checkers.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.upstream.evidence.results import CheckerResult, CheckStatus, CommandRun
from ckpt_surgery.upstream.layout import text_of
from ckpt_surgery.upstream.run.git import Git
from ckpt_surgery.upstream.run.interpreter import PythonInterpreter
from ckpt_surgery.upstream.run.parallel import TreePair

RUNNER = "utils/checkers.py"
CONVERTER = "modular_conversion"
COPIES = "copies"
DOCSTRINGS = "docstrings"

_IMPORTS = "imports"
_SCRIPTS = {
    COPIES: ("check_copies.py",),
    CONVERTER: ("check_modular_conversion.py",),
    "dummies": ("check_dummies.py",),
    "repo": ("check_repo.py",),
    "init_weights_data": ("check_init_weights_data.py",),
    "modeling_structure": ("check_modeling_structure.py",),
    "inits": ("check_inits.py",),
    "pipeline_typing": ("check_pipeline_typing.py",),
    "config_docstrings": ("check_config_docstrings.py",),
    "config_attributes": ("check_config_attributes.py",),
    "doctest_list": ("check_doctest_list.py",),
    "doc_toc": ("check_doc_toc.py",),
    DOCSTRINGS: ("check_docstrings.py",),
    "init_isort": ("custom_init_isort.py", "--check_only"),
    "auto_mappings": ("sort_auto_mappings.py", "--check_only"),
    "update_metadata": ("update_metadata.py", "--check-only"),
    "add_dates": ("add_dates.py", "--check-only"),
}
"""The scripts that upstream's `make` ran, by their names in the runner, with options that keep files unchanged."""

_RUFF = {"ruff_check": ("check",), "ruff_format": ("format", "--check")}
_FORMATTED = frozenset({CONVERTER, COPIES, *_RUFF})
"""The checkers whose answer depends on the version of ruff: the first two format with it before they compare."""

_ROUNDS = 3
"""How often the converter and the copies take turns: each may change what the other reads, and it settles sooner."""
_PINNED = re.compile(r"""["']ruff==([\w.]+)["']""")
_LISTED = re.compile(r"^  (\w+)\s", re.MULTILINE)
_CHECKED = re.compile(r"^check_dirs\s*:=(.*)$", re.MULTILINE)
_DURATION = re.compile(r"\(?\b\d+(?:\.\d+)? ?m?s\b\)?")
_MISSING = re.compile(r"(?:No such file or directory: |No module named )'([\w-]+)'")


@dataclass(frozen=True, slots=True)
class UpstreamTools:
    """The tools of a checkout.

    Attributes:
        python: runs them.
        has_runner: whether there is `utils/checkers.py`; if not, each checker is a script.
        has_converter: whether modeling files can be generated from modular ones; if not, nothing can be checked.
        ruff: the version that setup.py pins; None if it pins none.
    """

    python: PythonInterpreter
    has_runner: bool
    has_converter: bool
    ruff: str | None = None

    @classmethod
    def of(cls, tree: Path, python: PythonInterpreter) -> UpstreamTools:
        """Find the tools of a checkout without running anything."""
        pinned = _PINNED.search(text_of(tree / "setup.py"))
        has_runner = (tree / RUNNER).is_file()
        scripts = all((tree / "utils" / _SCRIPTS[name][0]).is_file() for name in (CONVERTER, COPIES))
        return cls(python, has_runner, has_runner or scripts, pinned[1] if pinned else None)

    @property
    def ruff_requirement(self) -> str:
        """Return the requirement that pip is asked to install."""
        return f"ruff=={self.ruff}" if self.ruff else "ruff"

    def check_ruff(self, tree: Path) -> str:
        """Return the version of the ruff that upstream's scripts call.

        Raises:
            UpstreamError: there is none, and the converter cannot work without it.
        """
        version = self._ruff_version(tree)
        if version is None:
            wanted, path = self.ruff_requirement, self.python.path
            raise UpstreamError(
                f"upstream's converter needs {wanted}, and {path} has none: {path} -m pip install {wanted}"
            )
        return version

    def fix(self, tree: Path, *, leave_out: Collection[str] = ()) -> tuple[CommandRun, ...]:
        """Regenerate files, update copies, fix docstrings and formatting; return the runs, in that order.

        The converter and the copies take turns until nothing changes any more. The linter and the formatter get only
        the files that differ from the commit, and are left out if ruff is not the pinned version. No cache and no
        backup file is left in the tree.

        Args:
            leave_out: the names of fixers to leave out.

        Raises:
            UpstreamError: there is no ruff, without which the converter cannot work.
        """
        if not self.has_converter:
            return ()

        def run_fixer(name: str) -> CommandRun:
            if self.has_runner:
                return self.python.run([RUNNER, name, "--fix", *_uncached(tree)], tree)
            return self.python.run([f"utils/{_SCRIPTS[name][0]}", "--fix_and_overwrite"], tree)

        git = Git(tree)
        version = self.check_ruff(tree)
        before = set(git.untracked())
        runs: list[CommandRun] = []
        difference = ""
        try:
            for name in (CONVERTER, COPIES) * _ROUNDS:
                runs.append(run_fixer(name))
                difference, old = git.run("diff", "--no-ext-diff", "HEAD"), difference
                if len(runs) > 1 and difference == old:
                    break
            if DOCSTRINGS not in leave_out and DOCSTRINGS in self._checker_names(tree):
                runs.append(run_fixer(DOCSTRINGS))
        finally:
            for name in set(git.untracked()) - before:
                (tree / name).unlink(missing_ok=True)
        files = [name for name in git.changed_files() if name.endswith(".py") and (tree / name).is_file()]
        if files and version == (self.ruff or version):
            runs += [self.python.tool("ruff", [*words, *files], tree) for words in (("check", "--fix"), ("format",))]
        return tuple(runs)

    def drift(self, tree: Path, modular: Sequence[str] = ()) -> frozenset[str]:
        """Return the files of a worktree at the base that the fixers change. The worktree is restored afterwards.

        Args:
            modular: modular files to convert even though they do not differ from the base.

        Raises:
            UpstreamError: as `fix` does.
        """
        git = Git(tree)
        try:
            self.fix(tree)
            if modular and self.has_converter:
                options = ["--fix_and_overwrite", "--check_all", "--files", *modular]
                self.python.run([f"utils/{_SCRIPTS[CONVERTER][0]}", *options], tree)
            return frozenset(git.changed_files())
        finally:
            git.restore()

    def checker_tasks(
        self,
        tree: Path,
        *,
        on_base: dict[str, CommandRun],
        step: Callable[[str], None] = lambda _: None,
    ) -> list[Callable[[TreePair], CheckerResult]]:
        """Return one task for each checker of `tree`; a checker that fails on the series is run on the base too.

        Tasks leave their trees as they were. Several may run at once in different trees.

        Args:
            on_base: the runs of checkers on the base, by name; kept from one series to the next.
            step: called with each checker's name before it runs.
        """
        if not self.has_converter:
            lacks = f"{RUNNER} nor utils/check_copies.py and utils/check_modular_conversion.py"
            reason = f"this checkout has neither {lacks}"
            return [lambda _: CheckerResult("upstream's checkers", CheckStatus.NOT_RUN, reason=reason)]

        def result(name: str, trees: TreePair) -> CheckerResult:
            step(name)
            ran = self._run_checker(trees.series, name)
            if ran.ok:
                return CheckerResult(name, CheckStatus.OK, ran)
            if name not in on_base:
                on_base[name] = self._run_checker(trees.base, name)
            return _compared(name, ran, on_base[name])

        version = self._ruff_version(tree)
        has = f"has ruff {version}" if version else "has no ruff"
        pins = f"setup.py pins {self.ruff_requirement}" if self.ruff else "it needs ruff"
        problem = f"{pins}, and the interpreter {has}: python -m pip install {self.ruff_requirement}"
        tasks: list[Callable[[TreePair], CheckerResult]] = []
        for name in self._checker_names(tree):
            if name in _FORMATTED and (version is None or version != (self.ruff or version)):
                missing = CheckerResult(name, CheckStatus.NOT_RUN, reason=problem)
                tasks.append(lambda _, missing=missing: missing)  # type: ignore[misc]
            else:
                tasks.append(partial(result, name))
        return tasks

    def _checker_names(self, tree: Path) -> list[str]:
        """List the checkers of a checkout in the order in which they are run.

        Raises UpstreamError if upstream's runner does not list them.
        """
        if not self.has_runner:
            names = [_IMPORTS]
            for name, (script, *options) in _SCRIPTS.items():
                text = text_of(tree / "utils" / script)
                if text and all(option in text for option in options):
                    names.append(name)
            return [*names, *_RUFF]
        ran = self.python.run([RUNNER, "all", "--list"], tree)
        names = _LISTED.findall(ran.output)
        if not ran.ok or not names:
            last = ran.output.rpartition("\n")[2]
            raise UpstreamError(
                f"`{ran.command}` does not list the checkers of this checkout (exit {ran.code}: {last})"
            )
        return names

    def _run_checker(self, tree: Path, name: str) -> CommandRun:
        """Run one checker, and undo its changes to the tree: a cache, or half a file if it was stopped."""
        git = Git(tree)
        before = set(git.changed_files())
        try:
            if self.has_runner:
                return self.python.run([RUNNER, name, *_uncached(tree)], tree)
            if name == _IMPORTS:
                return self.python.run(["-c", "from transformers import *"], tree)
            if name in _RUFF:
                listed = _CHECKED.search(text_of(tree / "Makefile"))  # what upstream's Makefile passes to ruff
                places = [*listed[1].split(), "setup.py", "conftest.py"] if listed else ["."]
                there = [place for place in places if (tree / place).exists()]
                return self.python.tool("ruff", [*_RUFF[name], *there], tree)
            script, *options = _SCRIPTS[name]
            return self.python.run([f"utils/{script}", *options], tree)
        finally:
            changed = sorted(set(git.changed_files()) - before)
            if changed:
                git.restore(changed)

    def _ruff_version(self, tree: Path) -> str | None:
        ran = self.python.tool("ruff", ["--version"], tree)
        return ran.output.removeprefix("ruff ").split(" ")[0] if ran.ok else None


def _compared(name: str, ran: CommandRun, before: CommandRun) -> CheckerResult:
    """Return what the failure of a checker on the series means, given its run on the base."""
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


def _uncached(tree: Path) -> list[str]:
    """Return the option that turns the runner's cache in the tree off; earlier runners have neither."""
    return ["--no-cache"] if "--no-cache" in text_of(tree / RUNNER) else []
