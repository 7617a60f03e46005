"""Worker processes that are cheap to start: forked from a server that has torch and transformers imported.

`worker` is the handle of one worker, `scheduler` gives them jobs, `fork_server` is what runs in the server.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import IO, Any

from ckpt_surgery.errors import CkptSurgeryError
from ckpt_surgery.survey.events import Event
from ckpt_surgery.survey.worker import Worker
from ckpt_surgery.survey.worker_exit import WorkerExit, last_line

PRELOAD = (
    "transformers.generation.utils",
    "transformers.modeling_layers",
    "transformers.models.auto.modeling_auto",
    "ckpt_surgery.survey.build",
    "ckpt_surgery.tiny:model_classes",
    "ckpt_surgery.measure.verify",
)
"""What every worker of a survey needs: 5 s of imports, torch included."""

_ENVIRONMENT = {
    # one thread each: there are as many workers as cores, and thread pools do not survive a fork
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONFAULTHANDLER": "",
    "PYTHONHASHSEED": "0",  # a model that iterates over a set is built alike in every worker
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
}
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]) or sys.path; "
    "from ckpt_surgery.survey.fork_server import main; main(int(sys.argv[1]), json.loads(sys.argv[3]))"
)
_TAIL_BYTES = 16384  # of what the fork server wrote
_EXIT_SECONDS = 5.0  # to wait for the exit code of a worker


class WorkerPoolError(CkptSurgeryError, RuntimeError):
    """No worker can be started, or a call in one failed."""


class WorkerPool:
    """A fork server and its workers; as a context manager it leaves no process behind.

    The server begins to import `preload` at once; the first `worker` waits for it. Workers run in their
    own session: an interrupt from the terminal does not reach them, and they end with this process, however that ends.

    Args:
        preload: modules that every worker has imported, and functions with a cache that have been called.
        python: another interpreter, which imports from its own path; without one, workers import from the same path
            as this process.
        environment: the variables of the workers; by default those of this process.

    Raises:
        WorkerPoolError: this operating system cannot fork.
    """

    def __init__(
        self,
        preload: Sequence[str] = PRELOAD,
        *,
        python: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if not hasattr(os, "fork") or not hasattr(socket, "send_fds"):
            raise WorkerPoolError(
                "models are examined in forked processes, which this operating system does not support"
            )
        self._preload = tuple(preload)
        self._python = python
        self._environment = environment
        self._groups: list[int] = []
        self._start()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The process id of the fork server, and of its process group."""
        return self._process.pid

    def worker(self) -> Worker:
        """Start a fresh worker. A fork server that has died is replaced.

        Raises:
            WorkerPoolError: the fork server does not start, or cannot import what it should.
        """
        try:
            return self._fork()
        except ConnectionError:
            if not self._ready:
                raise WorkerPoolError(f"the fork server does not start: {self._last_words()}") from None
        # its workers go on: their results are not lost, only their exit codes
        self._release()
        self._start()
        try:
            return self._fork()
        except ConnectionError:
            raise WorkerPoolError(f"the fork server died again: {self._last_words()}") from None

    def call(self, function: str, **arguments: object) -> Any:
        """Return the result of one call in a worker of its own.

        Raises:
            WorkerPoolError: the function raised, or the worker died.
        """
        worker = self.worker()
        try:
            worker.ask(function, **arguments)
            while not worker.ended:
                select.select(worker.pipes(), [], [])
                for event in worker.receive():
                    if event["event"] == Event.DONE:
                        return event["result"]
                    if event["event"] == Event.FAILED:
                        raise WorkerPoolError(event["error"])
            raise WorkerPoolError(str(worker.wait()))
        finally:
            worker.close()

    def exit_code(self, pid: int) -> int | None:
        """Return the exit code of a worker that is ending, negative for a signal; None if it is not known."""
        limit = monotonic() + _EXIT_SECONDS
        with contextlib.suppress(ConnectionError):
            while pid not in self._exits and monotonic() < limit:
                self._receive(limit - monotonic())
        return self._exits.pop(pid, None)

    def close(self) -> None:
        """Kill the fork server and all workers, whatever they are doing."""
        for group in self._groups:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        self._groups.clear()
        self._release()

    def _release(self) -> None:
        self._process.wait()
        self._control.close()
        self._errors.close()
        self._module_cache.cleanup()

    def _start(self) -> None:
        self._ready = False
        self._exits: dict[int, int] = {}
        self._pids: list[int] = []
        self._line = b""
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        # transformers copies code that comes with a model before it imports it
        self._module_cache = tempfile.TemporaryDirectory(prefix="ckpt_surgery-", ignore_cleanup_errors=True)
        self._control, theirs = socket.socketpair()
        path = [] if self._python else [os.path.abspath(entry) for entry in sys.path]
        with theirs:
            arguments = (str(theirs.fileno()), json.dumps(path), json.dumps(self._preload))
            self._process = subprocess.Popen(
                [str(self._python or sys.executable), "-P", "-c", _START, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                env={**(self._environment or os.environ), **_ENVIRONMENT, "HF_MODULES_CACHE": self._module_cache.name},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._groups.append(self._process.pid)

    def _fork(self) -> Worker:
        while not self._ready:
            self._receive(None)
        theirs, ours = [], []
        for reads in (True, False, False):
            reader, writer = os.pipe()
            theirs.append(reader if reads else writer)
            ours.append(writer if reads else reader)
        try:
            socket.send_fds(self._control, [b"fork"], theirs)
            while not self._pids:
                self._receive(None)
        except BaseException:
            for pipe in ours:
                os.close(pipe)
            raise
        finally:
            for pipe in theirs:
                os.close(pipe)
        return Worker(self._pids.pop(), *ours, exit_code=self.exit_code)

    def _receive(self, timeout: float | None) -> None:
        """Read messages of the fork server. Raises ConnectionError if it is gone, WorkerPoolError if imports fail."""
        self._control.settimeout(timeout)
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

    def _last_words(self) -> str:
        self._errors.seek(0)
        line = last_line(self._errors.read()[-_TAIL_BYTES:].decode("utf-8", "replace"))
        return line or str(WorkerExit.of_code(self._process.poll()))
