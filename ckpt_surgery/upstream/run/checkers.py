"""Upstream's own converter, fixers and checkers, as far as a checkout has them, and how each is called.

Upstream has had two ways to run them: one script for each, and later one runner (`utils/checkers.py`) for all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.upstream.evidence.results import CommandRun
from ckpt_surgery.upstream.layout import text_of
from ckpt_surgery.upstream.run.interpreter import PythonInterpreter

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
"""The scripts that upstream's `make` ran, by their names in the runner, with the option that keeps files unchanged."""

_RUFF = {"ruff_check": ("check",), "ruff_format": ("format", "--check")}
_FORMATTED = frozenset({CONVERTER, COPIES, *_RUFF})
"""The checkers whose answer depends on the version of ruff: the first two format with it what they compare with."""

_PINNED = re.compile(r"""["']ruff==([\w.]+)["']""")
_LISTED = re.compile(r"^  (\w+)\s", re.MULTILINE)
_CHECKED = re.compile(r"^check_dirs\s*:=(.*)$", re.MULTILINE)
_MAIN = re.compile(r"merge-base main\b|refs\.main\b")


class Generation(StrEnum):
    """Which of upstream's ways to run its checkers a checkout has."""

    RUNNER = "checkers"
    """`utils/checkers.py`."""
    SCRIPTS = "scripts"
    """`utils/check_modular_conversion.py`, `utils/check_copies.py` and their like."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class UpstreamTools:
    """What a checkout has. `ruff` is the version that its setup.py pins, None if it pins none."""

    generation: Generation
    ruff: str | None = None

    @property
    def has_converter(self) -> bool:
        """Whether modeling files can be generated from modular ones."""
        return self.generation is not Generation.NONE

    @property
    def ruff_requirement(self) -> str:
        """What pip is asked to install."""
        return f"ruff=={self.ruff}" if self.ruff else "ruff"


def find_tools(tree: Path) -> UpstreamTools:
    """The tools of a checkout, found without running anything."""
    pinned = _PINNED.search(text_of(tree / "setup.py"))
    ruff = pinned[1] if pinned else None
    if (tree / RUNNER).is_file():
        return UpstreamTools(Generation.RUNNER, ruff)
    needed = (tree / "utils" / _SCRIPTS[name][0] for name in (CONVERTER, COPIES))
    complete = all(script.is_file() for script in needed)
    return UpstreamTools(Generation.SCRIPTS if complete else Generation.NONE, ruff)


def checker_names(tools: UpstreamTools, python: PythonInterpreter, tree: Path) -> list[str]:
    """The checkers of a checkout, by name, in the order in which they are run.

    Raises UpstreamError if upstream's runner does not list them.
    """
    if tools.generation is Generation.SCRIPTS:
        scripts = (name for name, (script, *options) in _SCRIPTS.items() if _takes(tree / "utils" / script, options))
        return [_IMPORTS, *scripts, *_RUFF]
    ran = python.run([RUNNER, "all", "--list"], tree)
    names = _LISTED.findall(ran.output)
    if not ran.ok or not names:
        last = ran.output.rpartition("\n")[2]
        raise UpstreamError(f"`{ran.command}` does not list the checkers of this checkout (exit {ran.code}: {last})")
    return names


def run_checker(tools: UpstreamTools, python: PythonInterpreter, tree: Path, name: str) -> CommandRun:
    """Run one checker. It may leave files behind."""
    if tools.generation is Generation.RUNNER:
        return python.run([RUNNER, name, *_uncached(tree)], tree)
    if name == _IMPORTS:
        return python.run(["-c", "from transformers import *"], tree)
    if name in _RUFF:
        return python.tool("ruff", [*_RUFF[name], *_ruff_places(tree)], tree)
    script, *options = _SCRIPTS[name]
    return python.run([f"utils/{script}", *options], tree)


def run_fixer(tools: UpstreamTools, python: PythonInterpreter, tree: Path, name: str) -> CommandRun:
    """Have one checker change what it finds."""
    if tools.generation is Generation.RUNNER:
        return python.run([RUNNER, name, "--fix", *_uncached(tree)], tree)
    return python.run([f"utils/{_SCRIPTS[name][0]}", "--fix_and_overwrite"], tree)


def convert(python: PythonInterpreter, tree: Path, modular: Sequence[str]) -> CommandRun:
    """Generate what comes from these modular files, whether they differ from main or not."""
    script, *_ = _SCRIPTS[CONVERTER]
    return python.run([f"utils/{script}", "--fix_and_overwrite", "--check_all", "--files", *modular], tree)


def depends_on_ruff(name: str) -> bool:
    """Whether the answer of a checker depends on the version of ruff."""
    return name in _FORMATTED


def looks_at_changes_only(tree: Path, name: str) -> bool:
    """Whether a checker looks only at what differs from the branch main."""
    return any(_MAIN.search(text_of(tree / "utils" / script)) for script in (f"check_{name}.py", f"{name}.py"))


def ruff_version(python: PythonInterpreter, tree: Path) -> str | None:
    """The version of the ruff that upstream's scripts call; None if there is none."""
    ran = python.tool("ruff", ["--version"], tree)
    return ran.output.removeprefix("ruff ").split(" ")[0] if ran.ok else None


def check_ruff(tools: UpstreamTools, python: PythonInterpreter, tree: Path) -> str:
    """The version of ruff. Raises UpstreamError if there is none, without which the converter cannot work at all."""
    version = ruff_version(python, tree)
    if version is None:
        wanted = tools.ruff_requirement
        raise UpstreamError(
            f"upstream's converter needs {wanted}, and {python.path} has none: {python.path} -m pip install {wanted}"
        )
    return version


def fits(tools: UpstreamTools, version: str | None) -> bool:
    """Whether a version of ruff is the pinned one; without a pin, any version is."""
    return version is not None and version == (tools.ruff or version)


def _takes(script: Path, options: Sequence[str]) -> bool:
    """Whether a script exists and has the option that keeps it from changing files."""
    text = text_of(script)
    return bool(text) and all(option in text for option in options)


def _uncached(tree: Path) -> list[str]:
    """Later runners skip what a cache file in the tree remembers; earlier ones do not have this option."""
    return ["--no-cache"] if "--no-cache" in text_of(tree / RUNNER) else []


def _ruff_places(tree: Path) -> list[str]:
    """What upstream's Makefile passes to ruff; everything if it does not say."""
    listed = _CHECKED.search(text_of(tree / "Makefile"))
    names = [*listed[1].split(), "setup.py", "conftest.py"] if listed else ["."]
    return [name for name in names if (tree / name).exists()]
