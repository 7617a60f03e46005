"""One worker process, seen from outside: give it calls, read its events, and stop it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from collections.abc import Callable
from time import monotonic
from typing import Any

from ckpt_surgery.survey.worker_exit import ExitKind, StackFrame, WorkerExit, is_dump_complete, last_line

_TAIL_BYTES = 16384  # of its output, kept for its last line and stack dump
_MOST_BYTES = 1 << 20  # read at a time, more than a pipe holds
_DUMP_SECONDS = 1.0  # to wait for a stack dump


class Worker:
    """A worker process. Made by `WorkerPool.worker`.

    `requests`, `events` and `output` are the pipes to it and from it. `exit_code` waits for its end and returns its
    exit code, negative for a signal, or None if it is not known.
    """

    def __init__(
        self, pid: int, requests: int, events: int, output: int, *, exit_code: Callable[[int], int | None]
    ) -> None:
        self.pid = pid
        self.ended = False
        """Whether there are no more events: the process has ended, or is about to."""
        self._exit_code = exit_code
        self._requests, self._events, self._output = requests, events, output
        self._line = b""
        self._tail = b""
        self._output_closed = False
        for pipe in (events, output):
            os.set_blocking(pipe, False)

    def ask(self, call: str, **arguments: object) -> None:
        """Make it call the function `package.module:function` with `emit` and these arguments, sent as JSON.

        One call at a time. Its events come from `receive`; the last one is `done` or `failed`. If the worker is dead
        already, `receive` finds out.
        """
        data = json.dumps({"call": call, "arguments": arguments}).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._requests, data) :]

    def pipes(self) -> tuple[int, ...]:
        """Return the file descriptors to wait for: when one is readable, call `receive`."""
        return (self._events,) if self._output_closed else (self._events, self._output)

    def receive(self) -> list[dict[str, Any]]:
        """Return the events that have come, without waiting. What the process printed is read as well."""
        self._read_output()
        data, self.ended = _available(self._events)
        *lines, self._line = (self._line + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def kill(self) -> None:
        """End it at once, whatever it is doing."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.close()

    def stop(self, seconds: float) -> WorkerExit:
        """End it because it took more than `seconds`, and report where it was."""
        self._read_output()
        line = last_line(self._text())
        self._tail = b""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
        limit = monotonic() + _DUMP_SECONDS
        # the dump comes from a signal handler: at once, or never if the process cannot be scheduled
        while not is_dump_complete(self._text()) and monotonic() < limit:
            select.select([self._output], [], [], 0.05)
            if not self._read_output():
                break
        self.kill()
        return WorkerExit(ExitKind.TIMED_OUT, seconds=seconds, last_line=line, frames=StackFrame.read(self._text()))

    def wait(self) -> WorkerExit:
        """Wait for a worker that is ending by itself, and report how it ended."""
        code = self._exit_code(self.pid)
        self._read_output()
        self.close()
        return WorkerExit.of_code(code, self._text())

    def close(self) -> None:
        """Close the pipes, so that a worker that waits for a call ends."""
        for pipe in (self._requests, self._events, self._output):
            with contextlib.suppress(OSError):
                os.close(pipe)
        self._requests = self._events = self._output = -1

    def _read_output(self) -> bool:
        """Read and keep the end of what it wrote; return False if nothing more will come."""
        data, self._output_closed = _available(self._output)
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        return not self._output_closed

    def _text(self) -> str:
        return self._tail.decode("utf-8", "replace")


def _available(pipe: int) -> tuple[bytes, bool]:
    """Return what can be read now, and whether that was the end: there is nothing any more."""
    try:
        data = os.read(pipe, _MOST_BYTES)
    except BlockingIOError:
        return b"", False
    except OSError:
        return b"", True
    return data, not data
