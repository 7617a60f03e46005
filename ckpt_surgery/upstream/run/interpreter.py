"""The checkout's own Python: which one it is, and commands run with it.

What is run, and what its outcome means, is decided by `checks`, `reproduce`, `regression` and `family_tests`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.upstream.evidence.results import CommandRun

TIMEOUT = 1800.0
"""Seconds for one command, far more than any of upstream's checkers takes."""
LINES = 60
"""How much of a command's output is kept, from its end."""
DATA_MARK = "ckpt_surgery data:"
"""A line of output that begins with this is data for us, and is never shortened."""

EXIT_TIMED_OUT = 124
EXIT_NO_COMMAND = 127
_EXIT_SIGNAL = 128
"""Exit codes as a shell gives them; a process that a signal ended has 128 and the signal's number."""

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
# In a git hook, GIT_ variables name the caller's own repository. What variables tell Python and pytest is meant for
# ours, not for the checkout's.
_DROPPED = re.compile(r"GIT_|PYTHON|__PYVENV_LAUNCHER__$|PYTEST_|FORCE_COLOR$|CLICOLOR")
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_LIBRARY = re.compile(r"""(?<![\w.~>-])/[^\s"':=]*?/(?=lib(?:64)?/python3)""")
_IS_PYTHON = f"import sys; print('{DATA_MARK}', *sys.version_info[:2])"


class RunningCommands:
    """The commands that run now, which another thread can stop. Once stopped, no further one starts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    @contextlib.contextmanager
    def started(
        self, command: Sequence[str], folder: Path, env: Mapping[str, str], output: IO[bytes]
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A process, as long as it is waited for. Raises UpstreamError after `stop`."""
        with self._lock:
            if self._stopped:
                raise UpstreamError("another command failed, or was interrupted, and this one was not run")
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._processes.add(process)
        try:
            yield process
        finally:
            with self._lock:
                self._processes.discard(process)

    def stop(self) -> None:
        """Kill all commands with what they have started."""
        with self._lock:
            self._stopped = True
            for process in self._processes:
                _kill_group(process)


@dataclass(frozen=True, slots=True)
class PythonInterpreter:
    """A Python to run upstream's code with. `path` is absolute; it may be a link, as in a virtual environment."""

    path: Path
    running: RunningCommands = field(default_factory=RunningCommands, repr=False, compare=False, kw_only=True)

    def run(
        self,
        arguments: Sequence[str],
        tree: Path,
        *,
        shown: str = "",
        timeout: float = TIMEOUT,
        extra_path: Sequence[Path] = (),
        env: Mapping[str, str] | None = None,
    ) -> CommandRun:
        """Run this Python at the top of a tree, with the tree's own transformers; none of its processes is left.

        Args:
            shown: the command for the evidence, if the arguments are not fit to be read.
            timeout: seconds, after which the command is stopped and its exit code is 124.
            extra_path: folders to import from, after the tree's.
            env: more variables.

        Raises UpstreamError if the command cannot be started.
        """
        shown = shown or shlex.join(["python", *arguments])
        return self._run([str(self.path), *arguments], tree, shown, timeout, extra_path, env or {})

    def tool(self, name: str, arguments: Sequence[str], tree: Path) -> CommandRun:
        """Run a program that upstream's scripts call by its bare name (`ruff`): exit code 127 if there is none."""
        shown = shlex.join([name, *arguments])
        program = shutil.which(name, path=self._environment(tree, ())["PATH"])
        if program is None:
            return CommandRun(shown, EXIT_NO_COMMAND, f"{name}: command not found")
        return self._run([program, *arguments], tree, shown, TIMEOUT, (), {})

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
    ) -> CommandRun:
        neutral = self._neutral_paths(tree, extra_path)
        try:
            # a file and no pipe: a process that outlives its parent would keep a pipe open
            with tempfile.TemporaryFile() as output:
                variables = {**self._environment(tree, extra_path), **env}
                with self.running.started(command, tree, variables, output) as process:
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
        return CommandRun(_neutralised(shown, neutral), code, "\n".join(filter(None, [cut, text, ending])))

    def _neutral_paths(self, tree: Path, extra_path: Sequence[Path]) -> dict[str, str]:
        """What is written instead of the paths of this machine, the longest first."""
        names = {Path(os.path.expanduser("~")): "~", Path(tempfile.gettempdir()): "<tmp>"}
        if len(self.path.parents) > 2:
            names[self.path.parents[1]] = "<python>"
        names |= {folder: f"<{folder.name}>" for folder in extra_path}
        names[tree] = "."
        both = {place: name for path, name in names.items() for place in (str(path), os.path.realpath(path))}
        return {place: both[place] for place in sorted(both, key=len, reverse=True) if place != os.sep}


def find_interpreter(given: Path | None, checkout: Path) -> PythonInterpreter:
    """The Python that is given (a program, or the folder of a virtual environment), or else the checkout's own.

    That is the one of its `.venv` or `venv`, of the active virtual environment, or the one that runs this.
    Raises UpstreamError if what is given is no Python.
    """
    if given is None:
        folders = [checkout / ".venv", checkout / "venv", *map(Path, filter(None, [os.environ.get("VIRTUAL_ENV")]))]
        paths = (folder / "bin" / "python" for folder in folders)
        return PythonInterpreter(_absolute(next(filter(_is_program, paths), Path(sys.executable))))
    path = _absolute(given.expanduser())
    remedy = "name the Python that the checkout's requirements are installed in, or its virtual environment"
    if path.is_dir():
        path = path / "bin" / "python"
    if not path.is_file():
        raise UpstreamError(f"there is no Python at {path}: {remedy}")
    if not _is_program(path):
        raise UpstreamError(f"{path} is no program that can be run: {remedy}")
    python = PythonInterpreter(path)
    if not _answers_as_python(python):
        raise UpstreamError(f"{path} is no Python: {remedy}")
    return python


def _answers_as_python(python: PythonInterpreter) -> bool:
    try:
        return python.run(["-c", _IS_PYTHON], Path("/"), timeout=60).output.startswith(DATA_MARK)
    except UpstreamError:
        return False


def _wait(process: subprocess.Popen[bytes], timeout: float) -> tuple[int, str]:
    """The exit code as a shell would give it, and a line for the output if the command did not end by itself."""
    stopped = threading.Event()

    def stop() -> None:
        stopped.set()
        _kill_group(process)

    timer = threading.Timer(timeout, stop)  # wait(timeout) would ask again and again, and sleep in between
    timer.start()
    try:
        code = process.wait()
    finally:
        timer.cancel()
        _kill_group(process)  # also if it ended by itself: what it has started ends with it
        process.wait()
    if stopped.is_set():
        return EXIT_TIMED_OUT, f"stopped: it had not ended after {timeout:g} s"
    if code >= 0:
        return code, ""
    memory = " (as the system does when it is out of memory)" if code == -signal.SIGKILL else ""
    return _EXIT_SIGNAL - code, f"killed by {signal.Signals(-code).name}{memory}"


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _readable(data: bytes, neutral: Mapping[str, str]) -> str:
    """Text as it would stand on a screen at the end, without colours and paths of the machine."""
    text = _ESCAPE.sub("", data.decode("utf-8", "replace").replace("\r\n", "\n"))
    lines = (line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.split("\n"))
    return _neutralised("\n".join(map(_shortened, lines)), neutral).strip("\n")


def _shortened(line: str) -> str:
    return line if len(line) <= _WIDTH or line.startswith(DATA_MARK) else f"{line[:_WIDTH]} ..."


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
