"""The checkout's own Python: which one it is, what it has, and commands run with it.

What is run, and what its outcome means, is the business of `checks`, `reproduce` and `regression`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.upstream.evidence.results import Ran

TIMEOUT = 1800.0
"""Seconds for one command, far more than any of upstream's checkers takes."""
LINES = 60
"""How much of a command's output is kept, from its end."""

_WIDTH = 400
_FIXED = {
    "COLUMNS": "119",
    "HF_HUB_OFFLINE": "1",
    "NO_COLOR": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUTF8": "1",
    "TERM": "dumb",
    "TRANSFORMERS_VERBOSITY": "error",
}
# a hook of git has variables that name the caller's own repository; what Python and pytest are told by variables
# is meant for ours
_DROPPED = re.compile(r"GIT_|PYTHON|__PYVENV_LAUNCHER__$|PYTEST_|FORCE_COLOR$|CLICOLOR")
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_LIBRARY = re.compile(r"""(?<![\w.~>-])/[^\s"':=]*?/(?=lib(?:64)?/python3)""")

_IS_PYTHON = "import sys; print('python', *sys.version_info[:2])"
_MARK = "ckpt_surgery probe:"
_PROBE = f"""
import json, os, sys
told = {{"python": "%d.%d.%d" % sys.version_info[:3]}}
try:
    if sys.version_info >= (3, 11):
        import shutil, subprocess
        ruff = shutil.which("ruff")
        if ruff:
            words = subprocess.run([ruff, "--version"], capture_output=True, text=True).stdout.split()
            told["ruff"] = words[1] if len(words) > 1 else ""
        what = "transformers"
        import transformers
        told["transformers"] = transformers.__version__
        place = os.path.dirname(os.path.realpath(transformers.__file__))
        if place != os.path.realpath(os.path.join(sys.argv[1], "transformers")):
            told["elsewhere"] = place
        what = "torch"
        import torch
        told["torch"] = torch.__version__
except Exception as error:
    told["failed"], told["kind"], told["why"] = what, type(error).__name__, str(error)[:2000]
    told["name"] = getattr(error, "name", None)
print("\\n{_MARK}" + json.dumps(told))
"""
_PIN = re.compile(r"(?P<pin>\S+) is required for a normal functioning of this module, but found (?P<found>\S+?)\.?$")


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python to run upstream's code with. `path` is absolute; it may be a link, as in a virtual environment."""

    path: Path

    def run(
        self,
        arguments: Sequence[str],
        tree: Path,
        *,
        shown: str = "",
        timeout: float = TIMEOUT,
        extra_path: Sequence[Path] = (),
        env: Mapping[str, str] | None = None,
    ) -> Ran:
        """Run this Python at the top of a tree, with the tree's own transformers; no process of it is left.

        `shown` is the command for the evidence where the arguments are not fit to be read. `extra_path` holds
        folders to import from after the tree's, `env` more variables. Over `timeout` seconds, the code is 124; of a
        process that a signal ended, it is 128 and the signal's number, as in a shell.

        Raises UpstreamError where the command cannot be started.
        """
        shown = shown or shlex.join(["python", *arguments])
        return self._run([str(self.path), *arguments], tree, shown, timeout, extra_path, env or {})

    def tool(self, name: str, arguments: Sequence[str], tree: Path) -> Ran:
        """Run a program that upstream's scripts call by its bare name (`ruff`): code 127 where there is none."""
        shown = shlex.join([name, *arguments])
        found = shutil.which(name, path=self._environment(tree, ())["PATH"])
        if found is None:
            return Ran(shown, 127, f"{name}: command not found")
        return self._run([found, *arguments], tree, shown, TIMEOUT, (), {})

    def _environment(self, tree: Path, extra_path: Sequence[Path]) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not _DROPPED.match(name)}
        programs = [str(self.path.parent), *filter(None, [os.environ.get("PATH", os.defpath)])]
        modules = [str(tree / "src"), *map(str, extra_path)]
        return {**kept, **_FIXED, "PATH": os.pathsep.join(programs), "PYTHONPATH": os.pathsep.join(modules)}

    def _run(
        self,
        command: Sequence[str],
        tree: Path,
        shown: str,
        timeout: float,
        extra_path: Sequence[Path],
        env: Mapping[str, str],
    ) -> Ran:
        neutral = self._neutral(tree, extra_path)
        try:
            # a file and no pipe: a process that outlives its parent would keep a pipe open
            with tempfile.TemporaryFile() as output:
                process = subprocess.Popen(
                    command,
                    cwd=tree,
                    env={**self._environment(tree, extra_path), **env},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                code, ending = _wait(process, timeout)
                output.seek(0)
                lines: deque[bytes] = deque(maxlen=LINES)
                count = 0
                for line in output:
                    count += 1
                    lines.append(line)
        except OSError as error:
            raise UpstreamError(f"`{shown}` cannot be run: {_reason(error)}") from None
        text = _readable(b"".join(lines), neutral)
        cut = f"... ({count - LINES} lines before these)" if count > LINES else ""
        return Ran(_neutralised(shown, neutral), code, "\n".join(filter(None, [cut, text, ending])))

    def _neutral(self, tree: Path, extra_path: Sequence[Path]) -> dict[str, str]:
        """What stands for the paths of this machine, the longest first."""
        names = {Path(os.path.expanduser("~")): "~", Path(tempfile.gettempdir()): "<tmp>"}
        if len(self.path.parents) > 2:
            names[self.path.parents[1]] = "<python>"
        names |= {folder: f"<{folder.name}>" for folder in extra_path}
        names[tree] = "."
        both = {place: name for path, name in names.items() for place in (str(path), os.path.realpath(path))}
        return {place: both[place] for place in sorted(both, key=len, reverse=True) if place != os.sep}


def find_interpreter(given: Path | None, checkout: Path) -> Interpreter:
    """The Python that is named (a program, or the folder of a virtual environment), or else the checkout's own.

    That is the one of its `.venv` or `venv`, of the virtual environment that is active, or the one we run in.
    Raises UpstreamError where the one that is named is no Python.
    """
    if given is None:
        folders = [checkout / ".venv", checkout / "venv", *map(Path, filter(None, [os.environ.get("VIRTUAL_ENV")]))]
        paths = (folder / "bin" / "python" for folder in folders)
        return Interpreter(_absolute(next(filter(_is_program, paths), Path(sys.executable))))
    path = _absolute(given.expanduser())
    remedy = "name the Python that the checkout's requirements are installed in, or its virtual environment"
    if path.is_dir():
        path = path / "bin" / "python"
    if not path.is_file():
        raise UpstreamError(f"there is no Python at {path}: {remedy}")
    if not _is_program(path):
        raise UpstreamError(f"{path} is no program that can be run: {remedy}")
    python = Interpreter(path)
    try:
        known = python.run(["-c", _IS_PYTHON], Path("/"), timeout=60).output.startswith("python ")
    except UpstreamError:
        known = False
    if not known:
        raise UpstreamError(f"{path} is no Python: {remedy}")
    return python


def probe(python: Interpreter, tree: Path) -> dict[str, str]:
    """The versions of python, torch, transformers (the tree's own) and, where there is one, ruff.

    Raises UpstreamError where it cannot run the tree's models: too old, a requirement missing or of another
    version, or a transformers that is not the tree's.
    """
    ran = python.run(
        ["-c", _PROBE, str(tree / "src")], tree, shown="python -c 'import transformers, torch'", timeout=600
    )
    told = _told(ran)
    # not the tree: it may be a worktree that is gone when this is read
    install = f"install what it needs, in the checkout, with {python.path} -m pip install -e"
    install += " '.[torch,testing,quality]', or name another Python with --python"
    if not told:
        last = ran.output.rpartition("\n")[2]
        raise UpstreamError(f"{python.path} cannot import transformers and torch ({last}): {install}")
    if "failed" in told:
        raise UpstreamError(f"{python.path} {_unmet(told)}: {install}")
    if "transformers" not in told:
        raise UpstreamError(
            f"{python.path} is Python {told['python']}, and 3.11 or later is needed: name another one with --python"
        )
    if "elsewhere" in told:
        raise UpstreamError(
            f"{python.path} imports transformers from {told['elsewhere']} and not from the checkout: "
            "name a Python that heeds PYTHONPATH with --python"
        )
    return {name: version for name, version in sorted(told.items()) if version}


def _told(ran: Ran) -> dict[str, Any]:
    """What the probe found; empty where it did not come to its end."""
    line = next((line for line in ran.output.splitlines() if line.startswith(_MARK)), "")
    return dict(json.loads(line.removeprefix(_MARK))) if line else {}


def _unmet(told: Mapping[str, Any]) -> str:
    """What the interpreter lacks, as a clause."""
    lines = [line.strip() for line in told["why"].splitlines() if line.strip()] or [told["kind"]]
    pin = next(filter(None, map(_PIN.search, lines)), None)
    if pin:
        return f"has {pin['found']}, and the checkout needs {pin['pin']}"
    if told["kind"] == "ModuleNotFoundError" and told["name"]:
        return f"has no {told['name']}, which {told['failed']} needs" if told["name"] != "torch" else "has no torch"
    return f"cannot import {told['failed']} ({told['kind']}: {lines[0]})"


def _wait(process: subprocess.Popen[bytes], timeout: float) -> tuple[int, str]:
    """The exit code as a shell would give it, and a line about an end that was not the command's own doing."""
    try:
        code = process.wait(timeout)
    except subprocess.TimeoutExpired:
        return 124, f"stopped: it had not ended after {timeout:g} s"
    finally:
        # also where it ended by itself: what it has started ends with it
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if code >= 0:
        return code, ""
    memory = " (so does a system that is out of memory)" if code == -signal.SIGKILL else ""
    return 128 - code, f"killed by {signal.Signals(-code).name}{memory}"


def _readable(data: bytes, neutral: Mapping[str, str]) -> str:
    """Text as it would stand on a screen at the end, without colours and paths of the machine."""
    text = _ESCAPE.sub("", data.decode("utf-8", "replace").replace("\r\n", "\n"))
    shown = (line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.split("\n"))
    lines = (line if len(line) <= _WIDTH or line.startswith(_MARK) else f"{line[:_WIDTH]} ..." for line in shown)
    return _neutralised("\n".join(lines), neutral).strip("\n")


def _neutralised(text: str, neutral: Mapping[str, str]) -> str:
    places = "|".join(map(re.escape, neutral))
    text = _LIBRARY.sub("<python>/", text)
    return re.sub(rf"(?<![\w.~>-])(?:{places})(?![\w-])", lambda match: neutral[match[0]], text)


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _reason(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return f"no space is left in {tempfile.gettempdir()}; make room there, or set TMPDIR"
    place = f" ({error.filename})" if error.filename else ""
    return f"{error.strerror or error}{place}"
