"""Worker processes that are cheap to start: forked from a template that has torch and transformers imported.

Starts, feeds, hears and ends them. What they do is `worker`'s business, when they do it is `survey`'s.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import IO, Any

from ckpt_surgery.errors import CkptSurgeryError

PRELOAD = (
    "transformers.generation.utils",
    "transformers.modeling_layers",
    "transformers.models.auto.modeling_auto",
    "ckpt_surgery.survey.build",
    "ckpt_surgery.tiny",
    "ckpt_surgery.measure.verify",
)
"""What every worker of a survey needs: 5 s of imports, torch's among them."""

_ENVIRONMENT = {
    # one thread each: there are as many workers as cores, and a pool of threads does not survive a fork
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONFAULTHANDLER": "",
    "PYTHONHASHSEED": "0",  # a model that iterates over a set is built the same way in every worker
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
}
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from ckpt_surgery.survey.fork_server import main; main(int(sys.argv[1]), json.loads(sys.argv[3]))"
)
_TAIL = 16384
_PATIENCE = 5.0
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)$')
_DUMP_ENDS = (" in <module>\n", "\n  ...\n")
_DUMP = re.compile(r"^((Current thread|Thread) .*\(most recent call first\):|Stack \(most recent call first\):)$")


class WorkerPoolError(CkptSurgeryError, RuntimeError):
    """No worker can be started: one sentence that says why."""


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """How a worker ended: `how` as a clause ("the process was killed by SIGSEGV"), and what it left behind.

    `words` is the last line it wrote itself, `frames` are the Python frames it stood in, innermost first, each
    as `file:line in function`; both may be empty.
    """

    how: str
    words: str = ""
    frames: tuple[str, ...] = ()

    def __str__(self) -> str:
        place = f", at {self.frames[0]}" if self.frames else ""
        return self.how + place + (f"; the last line it wrote: {self.words}" if self.words else "")


class Worker:
    """One worker process, seen from outside. Made by `WorkerPool.worker`."""

    def __init__(self, pool: WorkerPool, pid: int, requests: int, events: int, output: int) -> None:
        self.pid = pid
        self.ended = False
        """Whether it has nothing more to say: it ended, or is about to."""
        self._pool = pool
        self._requests, self._events, self._output = requests, events, output
        self._line = b""
        self._tail = b""
        self._silent = False
        for pipe in (events, output):
            os.set_blocking(pipe, False)

    def ask(self, call: str, **arguments: object) -> None:
        """Have it call a function, named `package.module:function`, with `emit` and these arguments.

        One call at a time; JSON data only. Its events come from `receive`, the last one is `done` or `failed`.
        A worker that has died already is noticed by `receive`.
        """
        data = json.dumps({"call": call, "arguments": arguments}).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._requests, data) :]

    def pipes(self) -> tuple[int, ...]:
        """The file descriptors to wait for: something to `receive` has come where one can be read."""
        return (self._events,) if self._silent else (self._events, self._output)

    def receive(self) -> list[dict[str, Any]]:
        """The events that have come, without waiting. What it prints is taken in beside them."""
        self._take_output()
        data, self.ended = _available(self._events)
        *lines, self._line = (self._line + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def kill(self) -> None:
        """End it at once, whatever it is doing."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.close()

    def stop(self) -> WorkerExit:
        """End it, whatever it is doing, and tell where it stood."""
        self._take_output()
        words = _last_words(self._text())
        self._tail = b""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
        limit = monotonic() + 1
        # the dump comes from a signal handler: at once, or never where the process cannot be scheduled
        while not self._text().endswith(_DUMP_ENDS) and monotonic() < limit:
            select.select([self._output], [], [], 0.05)
            if not self._take_output():
                break
        self.kill()
        return WorkerExit("it was stopped", words, _frames(self._text()))

    def ending(self) -> WorkerExit:
        """How it ended by itself, with what it left behind; waits for the end."""
        code = self._pool.exit_code(self.pid)
        self._take_output()
        text = self._text()
        self.close()
        return WorkerExit(_how(code), _last_words(text), _frames(text))

    def close(self) -> None:
        """Let go of it: one that waits for work ends."""
        for pipe in (self._requests, self._events, self._output):
            with contextlib.suppress(OSError):
                os.close(pipe)
        self._requests = self._events = self._output = -1

    def _take_output(self) -> bool:
        data, self._silent = _available(self._output)
        self._tail = (self._tail + data)[-_TAIL:]
        return not self._silent

    def _text(self) -> str:
        return self._tail.decode("utf-8", "replace")


class WorkerPool:
    """The template and its workers; a context manager that leaves no process behind.

    The template begins to import `preload` at once; the first `worker` waits for it. Workers find modules where
    this process finds them. They run in a session of their own: an interrupt from the terminal does not reach
    them, and they end with this process, however that ends.

    Raises WorkerPoolError, from `worker`, where the template cannot be started.
    """

    def __init__(self, preload: Sequence[str] = PRELOAD) -> None:
        if not hasattr(os, "fork") or not hasattr(socket, "send_fds"):
            raise WorkerPoolError("models are examined in forked processes, which this operating system does not have")
        self._preload = tuple(preload)
        self._groups: list[int] = []
        self._start()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The template's process id, which is also the group's."""
        return self._process.pid

    def worker(self) -> Worker:
        """A fresh worker. A template that has died since the last one is replaced.

        Raises:
            WorkerPoolError: the template cannot import what it is to, or does not start.
        """
        try:
            return self._fork()
        except ConnectionError:
            if not self._ready:
                raise WorkerPoolError(
                    f"the process that workers come from does not start: {self._complaint()}"
                ) from None
        # its workers go on: what they do is not lost, only how they end is not told any more
        self._let_go()
        self._start()
        try:
            return self._fork()
        except ConnectionError:
            raise WorkerPoolError(f"the process that workers come from dies again: {self._complaint()}") from None

    def call(self, function: str, **arguments: object) -> Any:
        """The result of one call in a worker of its own.

        Raises:
            WorkerPoolError: the function raised, or the worker died.
        """
        worker = self.worker()
        try:
            worker.ask(function, **arguments)
            while not worker.ended:
                select.select(worker.pipes(), [], [])
                for event in worker.receive():
                    if event["event"] == "done":
                        return event["result"]
                    if event["event"] == "failed":
                        raise WorkerPoolError(event["error"])
            raise WorkerPoolError(str(worker.ending()))
        finally:
            worker.close()

    def exit_code(self, pid: int) -> int | None:
        """The exit code of a worker that is ending, minus the number where it was a signal; None if not known."""
        limit = monotonic() + _PATIENCE
        with contextlib.suppress(ConnectionError):
            while pid not in self._exits and monotonic() < limit:
                self._hear(limit - monotonic())
        return self._exits.pop(pid, None)

    def close(self) -> None:
        """End the template and all workers, whatever they are doing."""
        for group in self._groups:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        self._groups.clear()
        self._let_go()

    def _let_go(self) -> None:
        self._process.wait()
        self._control.close()
        self._errors.close()
        self._copies.cleanup()

    def _start(self) -> None:
        self._ready = False
        self._exits: dict[int, int] = {}
        self._pids: list[int] = []
        self._line = b""
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        # code that comes with a model is copied before it is imported: here, and not where it stays
        self._copies = tempfile.TemporaryDirectory(prefix="ckpt_surgery-", ignore_cleanup_errors=True)
        self._control, theirs = socket.socketpair()
        path = [os.path.abspath(entry) for entry in sys.path]
        with theirs:
            arguments = (str(theirs.fileno()), json.dumps(path), json.dumps(self._preload))
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _START, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                env={**os.environ, **_ENVIRONMENT, "HF_MODULES_CACHE": self._copies.name},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._groups.append(self._process.pid)

    def _fork(self) -> Worker:
        while not self._ready:
            self._hear(None)
        theirs, ours = [], []
        for reads in (True, False, False):
            reader, writer = os.pipe()
            theirs.append(reader if reads else writer)
            ours.append(writer if reads else reader)
        try:
            socket.send_fds(self._control, [b"fork"], theirs)
            while not self._pids:
                self._hear(None)
        except BaseException:
            for pipe in ours:
                os.close(pipe)
            raise
        finally:
            for pipe in theirs:
                os.close(pipe)
        return Worker(self, self._pids.pop(), *ours)

    def _hear(self, patience: float | None) -> None:
        """Take in what the template says; raises ConnectionError where it is gone, WorkerPoolError if it gave up."""
        self._control.settimeout(patience)
        try:
            data = self._control.recv(65536)
        except TimeoutError:
            return
        finally:
            self._control.settimeout(None)
        if not data:
            raise ConnectionResetError
        *lines, self._line = (self._line + data).split(b"\n")
        for message in map(json.loads, lines):
            if "failed" in message:
                raise WorkerPoolError(f"what models need cannot be imported: {message['failed']}")
            self._ready = self._ready or "ready" in message
            if "pid" in message:
                self._pids.append(message["pid"])
            if "exit" in message:
                self._exits[message["exit"]] = message["code"]

    def _complaint(self) -> str:
        self._errors.seek(0)
        words = _last_words(self._errors.read()[-_TAIL:].decode("utf-8", "replace"))
        return words or _how(self._process.poll())


def _available(pipe: int) -> tuple[bytes, bool]:
    """What can be read now, at most a megabyte, and whether that was the end."""
    parts: list[bytes] = []
    while sum(map(len, parts)) < 1 << 20:
        try:
            part = os.read(pipe, 1 << 16)
        except BlockingIOError:
            return b"".join(parts), False
        except OSError:
            return b"".join(parts), True
        if not part:
            return b"".join(parts), True
        parts.append(part)
    return b"".join(parts), False


def _how(code: int | None) -> str:
    if code is None:
        return "the process ended without a word"
    if code >= 0:
        return f"the process ended itself with exit code {code}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-code).name
        memory = " (so does a system that is out of memory)" if name == "SIGKILL" else ""
        return f"the process was killed by {name}{memory}"
    return f"the process was killed by signal {-code}"


def _frames(text: str) -> tuple[str, ...]:
    """The Python frames that the last dump in `text` shows, innermost first."""
    lines = text.splitlines()
    begin = max((i for i, line in enumerate(lines) if _DUMP.match(line)), default=len(lines))
    found = map(_FRAME.match, lines[begin + 1 :])
    return tuple(f"{_short(m['file'])}:{m['line']} in {m['function']}" for m in found if m)


def _short(file: str) -> str:
    """The file from its package on."""
    parts = Path(file).parts
    top = max((i + 1 for i, part in enumerate(parts) if part in ("site-packages", "dist-packages")), default=-2)
    return "/".join(parts[top:])


def _last_words(text: str) -> str:
    """The last line that says something and is no part of a dump of the stack."""
    lines = text.splitlines()
    fatal = [i for i, line in enumerate(lines) if line.startswith("Fatal Python error") or _DUMP.match(line)]
    spoken = [" ".join(line.split()) for line in lines[: min(fatal, default=len(lines))]]
    return next((line[:200] for line in reversed(spoken) if line), "")
