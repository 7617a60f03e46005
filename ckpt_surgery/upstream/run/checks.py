"""Upstream's own converter, fixers and checkers, as far as a checkout has them, run in worktrees of ours.

Upstream has had two ways to run them: scripts, one by one, and later one runner (`utils/checkers.py`) for all.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.upstream.evidence.results import Check, Ran
from ckpt_surgery.upstream.plan.layout import text_of
from ckpt_surgery.upstream.run.git import Git, changed_files, restore, untracked
from ckpt_surgery.upstream.run.interpreter import Interpreter

_RUNNER = "utils/checkers.py"
_CONVERTER = "modular_conversion"
_COPIES = "copies"
_ROUNDS = 3

_SCRIPTS = {
    _COPIES: ("check_copies.py",),
    _CONVERTER: ("check_modular_conversion.py",),
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
    "docstrings": ("check_docstrings.py",),
    "init_isort": ("custom_init_isort.py", "--check_only"),
    "auto_mappings": ("sort_auto_mappings.py", "--check_only"),
    "update_metadata": ("update_metadata.py", "--check-only"),
    "add_dates": ("add_dates.py", "--check-only"),
}
"""The scripts that upstream's `make` ran, by the names they have in the runner, with the option to change nothing."""

_RUFF = {"ruff_check": ("check",), "ruff_format": ("format", "--check")}
_FORMATTED = frozenset({_CONVERTER, _COPIES, *_RUFF})
"""The checkers whose answer depends on the version of ruff: the first two format what they compare with it."""

_CHECKED = re.compile(r"^check_dirs\s*:=(.*)$", re.MULTILINE)
_PINNED = re.compile(r"""["']ruff==([\w.]+)["']""")
_LISTED = re.compile(r"^  (\w+)\s", re.MULTILINE)
_MAIN = re.compile(r"merge-base main\b|refs\.main\b")
_TOOK = re.compile(r"\(?\b\d+(?:\.\d+)? ?m?s\b\)?")
_LACKS = re.compile(r"(?:No such file or directory: |No module named )'([\w-]+)'")


@dataclass(frozen=True, slots=True)
class Tools:
    """What a checkout has. `ruff` is the version that its setup.py pins, empty where it pins none.

    "checkers": one runner, `utils/checkers.py`. "scripts": `utils/check_modular_conversion.py`,
    `utils/check_copies.py` and their like. "none": neither.
    """

    generation: Literal["checkers", "scripts", "none"]
    ruff: str = ""

    @property
    def has_converter(self) -> bool:
        """Whether modeling files can be generated from modular ones."""
        return self.generation != "none"


def tools_of(tree: Path) -> Tools:
    """The tools of a checkout, found without running anything."""
    pinned = _PINNED.search(text_of(tree / "setup.py"))
    ruff = pinned[1] if pinned else ""
    if (tree / _RUNNER).is_file():
        return Tools("checkers", ruff)
    needed = (tree / "utils" / _SCRIPTS[name][0] for name in (_CONVERTER, _COPIES))
    return Tools("scripts" if all(script.is_file() for script in needed) else "none", ruff)


def fix(tools: Tools, python: Interpreter, tree: Path) -> tuple[Ran, ...]:
    """Generate what is generated, carry copies over, mend docstrings and formatting; the runs, in that order.

    The converter and the copies take turns until neither changes anything for the other. The linter and the
    formatter see the files that differ from the commit only, and are left out where ruff is not the pinned one.
    Nothing new is left in the tree: no cache, no backup.

    Raises UpstreamError where the converter cannot work at all: no ruff, or no local branch main.
    """
    if tools.generation == "none":
        return ()
    git = Git(tree)
    found = _ruff_version(python, tree)
    _check_converter(tools, python, git, found)
    before = set(untracked(git))
    ran: list[Ran] = []
    try:
        for name in (_CONVERTER, _COPIES) * _ROUNDS:
            state = _state(git)
            ran.append(_fix(tools, python, tree, name))
            if len(ran) > 1 and _state(git) == state:
                break
        if "docstrings" in _names(tools, python, tree):
            ran.append(_fix(tools, python, tree, "docstrings"))
    finally:
        for name in set(untracked(git)) - before:
            (tree / name).unlink(missing_ok=True)
    files = [name for name in changed_files(git) if name.endswith(".py") and (tree / name).is_file()]
    if files and not _ruff_problem(tools, found):
        ran += [python.tool("ruff", [*words, *files], tree) for words in (("check", "--fix"), ("format",))]
    return tuple(ran)


def drift(tools: Tools, python: Interpreter, tree: Path, modular: Sequence[str] = ()) -> tuple[str, ...]:
    """The files of a clean worktree that the fixers change, sorted; the worktree is clean again afterwards.

    The converter looks at models that differ from main only: `modular` names modular files that it is to generate
    from whatever differs.

    Raises UpstreamError as `fix` does.
    """
    git = Git(tree)
    try:
        fix(tools, python, tree)
        if modular and tools.has_converter:
            script, *_ = _SCRIPTS[_CONVERTER]
            options = ("--fix_and_overwrite", "--check_all", "--files", *modular)
            python.run([f"utils/{script}", *options], tree)
        return tuple(changed_files(git))
    finally:
        restore(git)


def check(
    tools: Tools, python: Interpreter, tree: Path, base: Path, *, step: Callable[[str], None] | None = None
) -> tuple[Check, ...]:
    """Every checker that the checkout has, run on `tree`; one that fails there is run on `base` too.

    `step` is told each checker's name before it runs. Both trees are left as they were.
    """
    if tools.generation == "none":
        reason = f"this checkout has neither {_RUNNER} nor utils/check_copies.py and utils/check_modular_conversion.py"
        return (Check("upstream's checkers", "not run", reason=reason),)
    ruff = _ruff_problem(tools, _ruff_version(python, tree))
    main = _has_main(Git(tree))
    checks = []
    for name in _names(tools, python, tree):
        problem = ruff if name in _FORMATTED else ""
        if not problem and not main and _compares_with_main(tree, name):
            problem = "it compares with a local branch main, and this checkout has none: git branch main makes one"
        if problem:
            checks.append(Check(name, "not run", reason=problem))
            continue
        if step:
            step(name)
        checks.append(_checked(tools, python, name, tree, base))
    return tuple(checks)


def _checked(tools: Tools, python: Interpreter, name: str, tree: Path, base: Path) -> Check:
    ran = _check(tools, python, tree, name)
    if ran.ok:
        return Check(name, "ok", ran)
    before = _check(tools, python, base, name)
    if before.ok:
        return Check(name, "failed", ran, before, "it passes on the base")
    if before.code != ran.code:
        return Check(name, "failed", ran, before, f"it fails on the base too, with exit {before.code}")
    if _TOOK.sub("", before.output) != _TOOK.sub("", ran.output):
        return Check(name, "failed otherwise before", ran, before, "the base fails too; what it says there differs")
    lacks = _LACKS.search(ran.output)
    if lacks:
        return Check(name, "not run", ran, before, f"it needs {lacks[1]}, which the interpreter does not have")
    return Check(name, "failed before too", ran, before, "the base fails in the same way")


def _names(tools: Tools, python: Interpreter, tree: Path) -> list[str]:
    """The checkers of a checkout, by name, in the order in which they are run."""
    if tools.generation == "scripts":
        scripts = (name for name, (script, *options) in _SCRIPTS.items() if _takes(tree / "utils" / script, options))
        return ["imports", *scripts, *_RUFF]
    ran = python.run([_RUNNER, "all", "--list"], tree)
    names = _LISTED.findall(ran.output)
    if not ran.ok or not names:
        last = ran.output.rpartition("\n")[2]
        raise UpstreamError(f"`{ran.command}` does not list the checkers of this checkout (exit {ran.code}: {last})")
    return names


def _takes(script: Path, options: Sequence[str]) -> bool:
    """Whether there is such a script, and it has the option that keeps it from changing files."""
    text = text_of(script)
    return bool(text) and all(option in text for option in options)


def _check(tools: Tools, python: Interpreter, tree: Path, name: str) -> Ran:
    with _left_as_found(Git(tree)):
        if tools.generation == "checkers":
            return python.run([_RUNNER, name, *_uncached(tree)], tree)
        if name == "imports":
            return python.run(["-c", "from transformers import *"], tree)
        if name in _RUFF:
            return python.tool("ruff", [*_RUFF[name], *_ruff_places(tree)], tree)
        script, *options = _SCRIPTS[name]
        return python.run([f"utils/{script}", *options], tree)


def _fix(tools: Tools, python: Interpreter, tree: Path, name: str) -> Ran:
    if tools.generation == "checkers":
        return python.run([_RUNNER, name, "--fix", *_uncached(tree)], tree)
    return python.run([f"utils/{_SCRIPTS[name][0]}", "--fix_and_overwrite"], tree)


def _uncached(tree: Path) -> list[str]:
    """Later runners skip what a cache file in the tree remembers; earlier ones do not know the option."""
    return ["--no-cache"] if "--no-cache" in text_of(tree / _RUNNER) else []


def _ruff_places(tree: Path) -> list[str]:
    """What upstream's Makefile has ruff look at; everything where it does not say."""
    listed = _CHECKED.search(text_of(tree / "Makefile"))
    named = [*listed[1].split(), "setup.py", "conftest.py"] if listed else ["."]
    return [place for place in named if (tree / place).exists()]


def _ruff_version(python: Interpreter, tree: Path) -> str:
    """The version of the ruff that upstream's scripts find, empty where they find none."""
    ran = python.tool("ruff", ["--version"], tree)
    return ran.output.removeprefix("ruff ").split(" ")[0] if ran.ok else ""


def _ruff_problem(tools: Tools, found: str) -> str:
    """Why the outcome of ruff would mean nothing; empty where it does."""
    if found and found == (tools.ruff or found):
        return ""
    wanted = f"ruff=={tools.ruff}" if tools.ruff else "ruff"
    has = f"has ruff {found}" if found else "has no ruff"
    pins = f"setup.py pins {wanted}" if tools.ruff else "it needs ruff"
    return f"{pins}, and the interpreter {has}: python -m pip install {wanted}"


def _check_converter(tools: Tools, python: Interpreter, git: Git, ruff: str) -> None:
    """Raises UpstreamError where the converter could only fail, whatever it is given."""
    if not ruff:
        wanted = f"ruff=={tools.ruff}" if tools.ruff else "ruff"
        raise UpstreamError(
            f"upstream's converter needs {wanted}, and {python.path} has none: {python.path} -m pip install {wanted}"
        )
    if not _has_main(git) and _compares_with_main(git.folder, _CONVERTER):
        raise UpstreamError(
            "upstream's converter compares with a local branch main, and the checkout has none: "
            "make one where the base is (git branch main BASE)"
        )


def _has_main(git: Git) -> bool:
    return bool(git.asks("rev-parse", "--verify", "--quiet", "refs/heads/main"))


def _compares_with_main(tree: Path, name: str) -> bool:
    return any(_MAIN.search(text_of(tree / "utils" / script)) for script in (f"check_{name}.py", f"{name}.py"))


@contextlib.contextmanager
def _left_as_found(git: Git) -> Iterator[None]:
    """Put back what a checker changes or leaves: a cache, or a half-written file where it was stopped."""
    before = set(changed_files(git))
    try:
        yield
    finally:
        left = sorted(set(changed_files(git)) - before)
        if left:
            restore(git, left)


def _state(git: Git) -> str:
    """What differs from the commit, as text."""
    return git.run("diff", "--no-ext-diff", "HEAD")
