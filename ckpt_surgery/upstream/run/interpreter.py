"""Find the checkout's own Python, and run commands with it.

`checkers`, `reproduce`, `regression` and `pytest_run` decide what is run, and what the outcome means.
"""

from __future__ import annotations

import contextlib
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
from dataclasses import dataclass, field
from pathlib import Path

from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.upstream.evidence.results import CommandRun

TIMEOUT = 1800.0
"""Seconds for one command, far more than any of upstream's checkers takes."""
LINES = 60
"""The number of lines at the end of a command's output that are kept."""

EXIT_TIMED_OUT = 124
"""The exit code of `timeout`. Others follow the shell: 128 plus the number of the signal that ended the process."""

_WIDTH = 400
"""Longer lines of output are cut."""
_FIXED = {
    "COLUMNS": "119",
    "HF_HUB_OFFLINE": "1",
    "NO_COLOR": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUTF8": "1",
    "TERM": "dumb",
    "TRANSFORMERS_VERBOSITY": "error",
}
# in a git hook, GIT_ variables name the caller's repository; variables for Python and pytest are meant for ours
_DROPPED = re.compile(r"GIT_|PYTHON|__PYVENV_LAUNCHER__$|PYTEST_|FORCE_COLOR$|CLICOLOR")
_LIBRARY = re.compile(r"""(?<![\w.~>-])/[^\s"':=]*?/(?=lib(?:64)?/python3)""")


@dataclass(frozen=True, slots=True)
class PythonInterpreter:
    """A Python to run upstream's code with. `path` is absolute; it may be a link, as in a virtual environment."""

    path: Path
    running: set[subprocess.Popen[bytes]] = field(default_factory=set, repr=False, compare=False, kw_only=True)
    """The commands that are running; `kill_all` may be called from another thread."""

    @classmethod
    def find(cls, given: Path | None, checkout: Path) -> PythonInterpreter:
        """Return the Python that is given (a program, or the folder of a virtual environment), or the checkout's own.

        That is the one of its `.venv` or `venv`, of the active virtual environment, or the one that runs this.

        Raises:
            UpstreamError: what is given is not a program.
        """
        if given is None:
            folders = [checkout / ".venv", checkout / "venv"]
            folders += map(Path, filter(None, [os.environ.get("VIRTUAL_ENV")]))
            own = (folder / "bin/python" for folder in folders if os.access(folder / "bin/python", os.X_OK))
            return cls(Path(os.path.abspath(next(own, sys.executable))))
        path = Path(os.path.abspath(given.expanduser()))
        path = path / "bin/python" if path.is_dir() else path
        if not os.access(path, os.X_OK):
            raise UpstreamError(
                f"there is no Python at {path}: name the Python that the checkout's requirements are installed in, "
                "or its virtual environment"
            )
        return cls(path)

    def run(
        self,
        arguments: Sequence[str],
        tree: Path,
        *,
        shown: str = "",
        timeout: float = TIMEOUT,
        env: Mapping[str, str] | None = None,
    ) -> CommandRun:
        """Run this Python at the top of a tree, with the tree's own transformers; no child process outlives the call.

        Args:
            shown: the command for the evidence, if the arguments are unreadable.
            timeout: seconds, after which the command is stopped and its exit code is 124.
            env: further environment variables.

        Raises:
            UpstreamError: the command cannot be started.
        """
        return self._run([str(self.path), *arguments], tree, shown or shlex.join(["python", *arguments]), timeout, env)

    def tool(self, name: str, arguments: Sequence[str], tree: Path) -> CommandRun:
        """Run a program that upstream's scripts call by its bare name (`ruff`); exit code 127 if it is missing."""
        shown = shlex.join([name, *arguments])
        program = shutil.which(name, path=self.environment(tree)["PATH"])
        if program is None:
            return CommandRun(shown, 127, f"{name}: command not found")
        return self._run([program, *arguments], tree, shown, TIMEOUT, {})

    def kill_all(self) -> None:
        """Kill the running commands, and every process that they started."""
        for process in list(self.running):
            _kill_group(process)

    def environment(self, tree: Path) -> dict[str, str]:
        """Return the environment for upstream's code: the tree's transformers and this Python come first."""
        kept = {name: value for name, value in os.environ.items() if not _DROPPED.match(name)}
        programs = [str(self.path.parent), *filter(None, [os.environ.get("PATH", os.defpath)])]
        return {**kept, **_FIXED, "PATH": os.pathsep.join(programs), "PYTHONPATH": str(tree / "src")}

    def neutral(self, text: str, tree: Path) -> str:
        """Replace the paths of this machine in a text: `.` stands for the tree, `<python>` for this Python."""
        names = {Path.home(): "~", Path(tempfile.gettempdir()): "<tmp>"}
        if len(self.path.parents) > 2:
            names[self.path.parents[1]] = "<python>"
        names[tree] = "."
        paths = {text: name for path, name in names.items() for text in (str(path), os.path.realpath(path))}
        paths.pop(os.sep, None)
        pattern = "|".join(map(re.escape, sorted(paths, key=len, reverse=True)))
        text = _LIBRARY.sub("<python>/", text)
        return re.sub(rf"(?<![\w.~>-])(?:{pattern})(?![\w-])", lambda match: paths[match[0]], text)

    def _run(
        self, command: Sequence[str], tree: Path, shown: str, timeout: float, env: Mapping[str, str] | None
    ) -> CommandRun:
        try:
            # a file, not a pipe: a process that outlives its parent would keep a pipe open
            with tempfile.TemporaryFile() as output:
                process = subprocess.Popen(
                    command,
                    cwd=tree,
                    env={**self.environment(tree), **(env or {})},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                self.running.add(process)
                try:
                    code, ending = _wait(process, timeout)
                finally:
                    self.running.discard(process)
                output.seek(0)
                last = deque(enumerate(output, start=1), maxlen=LINES)
        except OSError as error:
            place = f" ({error.filename})" if error.filename else ""
            raise UpstreamError(f"`{shown}` cannot be run: {error.strerror or error}{place}") from None
        text = b"".join(line for _, line in last).decode("utf-8", "replace").replace("\r\n", "\n")
        lines = [line.rstrip() for line in self.neutral(text, tree).split("\n")]
        lines = [line if len(line) <= _WIDTH else f"{line[:_WIDTH]} ..." for line in lines]
        before = last[0][0] - 1 if last else 0
        cut = f"... ({before} lines before these)" if before else ""
        parts = filter(None, [cut, "\n".join(lines).strip("\n"), ending])
        return CommandRun(self.neutral(shown, tree), code, "\n".join(parts))


def _wait(process: subprocess.Popen[bytes], timeout: float) -> tuple[int, str]:
    """Return the exit code as a shell gives it, and a line for the output if the command was stopped or killed."""
    try:
        code = process.wait(timeout)
    except subprocess.TimeoutExpired:
        return EXIT_TIMED_OUT, f"stopped: it had not ended after {timeout:g} s"
    finally:
        _kill_group(process)  # also if it ended by itself, for the processes that it started
        process.wait()
    if code >= 0:
        return code, ""
    memory = " (as the system does when it is out of memory)" if code == -signal.SIGKILL else ""
    return 128 - code, f"killed by {signal.Signals(-code).name}{memory}"


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
