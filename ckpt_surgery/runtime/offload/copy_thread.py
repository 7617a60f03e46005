"""Copy on a single thread, in the order of requests, while the step goes on."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch

from ckpt_surgery.errors import SurgeryError


@dataclass(frozen=True, slots=True, eq=False)
class CopyJob:
    """A copy on a thread of the process `process`; `what` names it in messages."""

    what: str
    process: int
    future: Future[None]
    thread: CopyThread

    def wait(self) -> None:
        """Wait until the copy is done; a forked process has nothing to wait for. Raises SurgeryError if it failed."""
        if self.process != os.getpid():
            return
        self.thread.waited += not self.future.done()
        if self.future.cancelled():
            return
        error = self.future.exception()  # `result()` would raise it with a traceback that holds the frames of the step
        if error is not None:
            raise SurgeryError(
                f"offload could not {self.what} ({type(error).__name__}: {error}): this step is lost; give another "
                'folder, or "cpu", as offload'
            ) from error


@dataclass(eq=False)
class CopyThread:
    """A thread that starts with the first copy, and ends when it is stopped or no longer referenced.

    A forked process gets its own thread. The interpreter's exit waits for pending copies. Of all `copies` since it
    was made, `waited` were not done when a step needed them; at most `peak` were queued or running at once.
    """

    copies: int = 0
    waited: int = 0
    peak: int = 0
    _executor: ThreadPoolExecutor | None = None
    _process: int = 0
    _unfinished: weakref.WeakSet[Future[None]] = field(default_factory=weakref.WeakSet)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, what: str, copy: Callable[[], None]) -> CopyJob:
        """Queue `copy` behind all earlier ones."""
        with self._lock:
            future = self._submit(copy)
            self._unfinished = weakref.WeakSet([each for each in self._unfinished if not each.done()] + [future])
            self.copies += 1
            self.peak = max(self.peak, len(self._unfinished))
        return CopyJob(what, os.getpid(), future, self)

    def stop(self) -> None:
        """Let the thread end after the queued copies. A later copy starts another thread."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None and self._process == os.getpid():
            executor.shutdown(wait=False)

    def _submit(self, copy: Callable[[], None]) -> Future[None]:
        copy = torch.no_grad()(copy)
        if self._executor is None or self._process != os.getpid():
            self._executor = ThreadPoolExecutor(1, "ckpt-surgery-offload")
            self._process = os.getpid()
            self._unfinished = weakref.WeakSet()
        try:
            return self._executor.submit(copy)
        except RuntimeError:  # the interpreter is exiting: no thread takes work any more
            done: Future[None] = Future()
            try:
                copy()
                done.set_result(None)
            except Exception as error:
                done.set_exception(error)
            return done
