"""Copy on a single thread, in the order of requests, while the step goes on."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from ckpt_surgery.errors import SurgeryError


@dataclass(frozen=True, slots=True, eq=False)
class CopyJob:
    """A copy on a thread of the process `process`; `what` names it in messages."""

    what: str
    process: int
    future: Future[None]

    def wait(self) -> None:
        """Wait until the copy is done; a forked process has nothing to wait for. Raises SurgeryError if it failed."""
        if self.process != os.getpid():
            return
        if self.future.cancelled():
            return
        error = self.future.exception()  # `result()` would raise it with a traceback that holds the frames of the step
        if error is not None:
            raise SurgeryError(
                f"offload could not {self.what} ({type(error).__name__}: {error}): this step is lost; give another "
                'folder, or "cpu", as offload'
            ) from error


class CopyThread:
    """A thread that starts with the first copy, and ends when it is stopped or no longer referenced.

    A forked process gets its own thread. The interpreter's exit waits for pending copies.
    """

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._process = 0

    def run(self, what: str, copy: Callable[[], None]) -> CopyJob:
        """Queue `copy` behind all earlier ones."""
        copy = torch.no_grad()(copy)
        if self._executor is None or self._process != os.getpid():
            self._executor = ThreadPoolExecutor(1, "ckpt-surgery-offload")
            self._process = os.getpid()
        try:
            future = self._executor.submit(copy)
        except RuntimeError:  # the interpreter is exiting: no thread takes work any more
            future = Future()
            try:
                copy()
                future.set_result(None)
            except Exception as error:
                future.set_exception(error)
        return CopyJob(what, os.getpid(), future)

    def stop(self) -> None:
        """Let the thread end after the queued copies. A later copy starts another thread."""
        executor, self._executor = self._executor, None
        if executor is not None and self._process == os.getpid():
            executor.shutdown(wait=False)
