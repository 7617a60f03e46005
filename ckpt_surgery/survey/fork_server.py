"""The process that workers are forked from: it imports what they need once, then forks one on request.

`worker_pool.WorkerPool` starts it and talks to it over one socket; it runs no model itself.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import selectors
import signal
import socket
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from ckpt_surgery.text import error_line


def main(control: int, preload: Sequence[str]) -> NoReturn:
    """Import `preload`, report that on the socket `control`, then fork a worker whenever three pipes arrive on it.

    A function there, `package.module:function`, is called to fill its cache.

    When the other end of the socket is closed, it kills itself and every worker.
    """
    channel = socket.socket(fileno=control)
    warnings.simplefilter("ignore")
    try:
        for name in preload:
            module, _, function = name.partition(":")
            imported = import_module(module)
            if function:
                with contextlib.suppress(Exception):  # it raises again in the workers that need it
                    getattr(imported, function)()
    except BaseException as error:
        _send(channel, failed=error_line(error))
        raise SystemExit(1) from None
    # the collector never touches frozen objects, so their pages stay shared with the workers
    gc.collect()
    gc.freeze()
    awake, waker = socket.socketpair()
    for end in (awake, waker):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    _send(channel, ready=os.getpid())
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        selector.register(awake, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is channel:
                    _fork(channel, (selector, awake, waker))
                else:
                    with contextlib.suppress(BlockingIOError):
                        awake.recv(4096)
            # report the exit code of every worker that has ended, negative for a signal
            with contextlib.suppress(ChildProcessError):
                while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                    _send(channel, exit=ended[0], code=os.waitstatus_to_exitcode(ended[1]))


def _send(channel: socket.socket, **message: object) -> None:
    with contextlib.suppress(OSError):
        channel.sendall(json.dumps(message).encode() + b"\n")


def _fork(channel: socket.socket, ours: tuple[selectors.DefaultSelector, socket.socket, socket.socket]) -> None:
    message, pipes, _, _ = socket.recv_fds(channel, 16, 3)
    if not message:
        os.killpg(os.getpgid(0), signal.SIGKILL)
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in (*ours, channel):
            end.close()
        _work(*pipes)
    for pipe in pipes:
        os.close(pipe)
    _send(channel, pid=child)


def _work(requests: int, events: int, output: int) -> NoReturn:
    """Serve as a worker: standard output and error go to the pipe `output`, standard input is empty."""
    code = 1
    try:
        # if memory runs out, the kernel should kill a worker, not this process and not the survey's
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("500")
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
        # both work while a C function holds the interpreter lock; a Python handler would not
        faulthandler.enable(file=2, all_threads=False)
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)

        from ckpt_surgery.survey.worker_main import serve

        serve(requests, events)
        code = 0
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
