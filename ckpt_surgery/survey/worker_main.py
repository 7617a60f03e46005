"""Serve calls inside a worker process: they come in as lines of JSON on one pipe, events go out on another.

This knows nothing of models; a survey makes it call `examination.examine`.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any

from ckpt_surgery.survey.events import Event
from ckpt_surgery.text import error_line

Emit = Callable[..., None]
"""`emit(Event.PHASE, kind="build")` sends one event; the values are JSON data."""


def serve(requests: int, events: int) -> None:
    """Make the calls that come in on the pipe `requests` one after the other, until it is closed.

    The last event of every call is `done` with its result, or `failed` with the error on one line; both come with the
    resident bytes of this process afterwards.
    """
    os.set_inheritable(requests, False)
    os.set_inheritable(events, False)

    def emit(event: Event, **data: object) -> None:
        line = json.dumps({"event": event, **data}).encode() + b"\n"
        while line:
            line = line[os.write(events, line) :]

    with contextlib.suppress(BrokenPipeError), open(requests, encoding="utf-8") as lines:
        for line in lines:
            request = json.loads(line)
            try:
                result = load(request["call"])(emit, **request["arguments"])
            except BaseException as error:
                traceback.print_exc()
                emit(Event.FAILED, error=error_line(error), resident=free_memory())
            else:
                emit(Event.DONE, result=result, resident=free_memory())


def load(name: str) -> Any:
    """Return what `package.module:attribute` names."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def free_memory() -> int:
    """Free what the last call left, and return the resident bytes of this process, 0 if they are not known."""
    gc.collect()
    gc.freeze()  # what is left are modules: scanning them costs 0.1 s a collection
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError), open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
