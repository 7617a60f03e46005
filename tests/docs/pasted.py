"""Run a page's blocks as a reader does: pasted into a shell, in an environment made by the page's install line."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tomllib
import venv
from collections.abc import Iterator
from contextlib import chdir
from functools import cache
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.docs.commands import ROOT, Command, command_faults, commands, difference, extras, fits
from tests.docs.pages import Block, faults_of, fenced, read
from tests.warm_python import WarmPython

PASTED = ("README.md", "docs/quickstart.md", "docs/out-of-memory.md", "docs/is-it-right.md")
"""The pages that are pasted, chosen by hand; all others run in the small checkout of `tests/docs/checkout.py`."""
SESSION = (
    "import doctest, sys, warnings; warnings.simplefilter('ignore'); "
    "sys.exit(doctest.testfile(sys.argv[1], module_relative=False).failed)"
)


def install_lines(text: str) -> list[str]:
    """Collect what the install lines of a page name, such as `.[torch]`."""
    return re.findall(r"^\$ python -m pip install '?([^'\n]+)'?$", text, re.MULTILINE)


def environment(folder: Path, what: str) -> Path:
    """Make a virtual environment with what `pip install WHAT` brings, linked from where it is installed here."""
    named = extras(what)
    assert named is not None, f"nobody knows how to install {what}"
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(line for extra in named for line in project["optional-dependencies"][extra])]
    for installed in closure(wanted):
        top = {file.parts[0] for file in installed.files or () if file.parts[0] != ".."}
        for name in top - {"__pycache__"}:
            if not (packages / name).exists():
                (packages / name).symlink_to(str(installed.locate_file(name)))
    (packages / "ckpt_surgery").symlink_to(ROOT / "ckpt_surgery")
    for script, entry in project["scripts"].items():
        module, _, function = entry.partition(":")
        program = folder / "bin" / script
        program.write_text(
            f"#!{folder}/bin/python\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n"
        )
        program.chmod(0o755)
    return folder


def closure(wanted: list[str]) -> Iterator[Distribution]:
    """Collect the distributions that requirements bring, directly and through others."""
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(line) for line in wanted]
    while waiting:
        needed = waiting.pop()
        if (key := (needed.name, frozenset(needed.extras))) in seen:
            continue
        seen.add(key)
        installed = distribution(needed.name)
        yield installed
        for line in installed.requires or ():
            inner = Requirement(line)
            chosen = [{"extra": extra} for extra in ("", *needed.extras)]
            if inner.marker is None or any(map(inner.marker.evaluate, chosen)):
                waiting.append(inner)


def pasted_faults(text: str, place: Path, *, forked: bool = False) -> list[str]:
    """Paste a page's blocks in order into a shell in `place`; describe what ends differently from the page.

    A command that is on several pages runs once. With `forked`, all but what the front page runs too runs in forks of
    a Python that has imported torch there.
    """
    started = read("README.md") if forked else text
    return [fault for block in fenced(text) for fault in _pasted_faults_of(block, place, started)]


@cache
def _pasted_faults_of(block: Block, place: Path, started: str) -> tuple[str, ...]:
    forked = block.text not in started
    match block.language:
        case "console":
            found = (_faults_of_command(command, place, started) for command in commands(block.text))
            return tuple(fault for faults in found for fault in faults)
        case "python":
            code, printed = _run(["python", "-c", block.text], place, forked)
            return () if code == 0 and printed else (f"the Python example ends with {code}: {printed}",)
        case "pycon":
            (place / "session.txt").write_text(block.text, encoding="utf-8")
            code, printed = _run(["python", "-c", SESSION, "session.txt"], place, forked)
            return () if code == 0 else (printed,)
    with chdir(place.parent):  # where a checker may write its checkout
        return faults_of(block)


def _faults_of_command(command: Command, place: Path, started: str) -> list[str]:
    if re.match(r"python -m pip install |make ", command.line):
        return command_faults(command)
    code, printed = _run_line(command.line, place, f"\n$ {command.line}\n" not in started)
    if code not in (0, 1) or "Traceback" in printed:
        return [f"{command.line} ends with {code} and prints {printed}"]
    if fits(command.shown, printed):
        return []
    return [f"{command.line} prints something else:\n{difference(command.shown, printed)}"]


@cache
def _run_line(line: str, place: Path, forked: bool) -> tuple[int, str]:
    return _run(shlex.split(line) if forked else ["bash", "-c", line], place, forked)


def _run(words: list[str], place: Path, forked: bool) -> tuple[int, str]:
    """Run a command in the environment beside `place`; return its exit code and output."""
    done: subprocess.CompletedProcess[str]
    if forked:
        program, *arguments = words
        script = [] if program == "python" else [str(_programs(place) / program)]
        done = _warm(place).run([*script, *arguments], place, _settings(place))
    else:
        done = subprocess.run(
            words, cwd=place, env=_settings(place), capture_output=True, text=True, check=False, timeout=280
        )
    return done.returncode, done.stdout + done.stderr


def _settings(place: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "CI"))}
    path = os.pathsep.join([str(_programs(place)), os.environ["PATH"]])
    return kept | {"PATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HOME": str(place)}


def _programs(place: Path) -> Path:
    return place.parent / "environment" / "bin"


@cache
def _warm(place: Path) -> WarmPython:
    return WarmPython(_settings(place), str(_programs(place) / "python"))


def has(package: str, folder: Path) -> bool:
    """Tell whether Python finds a package in an environment."""
    words = [str(folder / "bin" / "python"), "-c", f"import importlib.util as u; print(u.find_spec('{package}'))"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip() != "None"
