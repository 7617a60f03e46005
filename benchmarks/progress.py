"""The measurements of one benchmark, each kept in its json as soon as it is made: a run that ends early loses none.

A measurement has a name. One that found no room on the device, or failed, is kept with the reason, and the others go
on. What the figures are is made from all of them, anew each time.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.device import Device
from benchmarks.figures import Figure, document
from ckpt_surgery.text import error_line

NO_ROOM = "the device has too little memory"
_OUT_OF_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
"""What errors say that are no torch.OutOfMemoryError: of pinned memory, and of libraries that take their own."""

Kept = Mapping[str, Any]
"""Measurements by name; None for one without room. One that failed, or was not made yet, is not there."""


class Progress:
    """The measurements so far, in the json `file`."""

    def __init__(
        self, program: str, file: Path, figures_of: Callable[[Kept], Sequence[Figure]], device: Device
    ) -> None:
        self._program = program
        self._file = file
        self._figures_of = figures_of
        self._device = device
        self.kept: dict[str, Any] = {}
        self.errors: dict[str, str] = {}
        self.notes: list[str] = []

    @property
    def figures(self) -> Sequence[Figure]:
        """The figures of what is measured so far."""
        return self._figures_of(self.kept)

    def text(self, *, finished: bool = True) -> str:
        """Return the json, of a benchmark that has come to its end or has not."""
        no_room = [name for name, value in self.kept.items() if value is None]
        more = {"no_room": no_room, "errors": self.errors, "notes": self.notes, "finished": finished}
        return document(self.figures, device=self._device.name, **more)

    def measure(self, name: str, measurement: Callable[[], Any]) -> Any:
        """Make a measurement, and keep it. Returns it; None where there is none."""
        print(f"{self._program}: {name}", file=sys.stderr, flush=True)
        gc.collect()  # models and their hooks hold each other
        self._device.empty_cache()
        try:
            self.kept[name] = measurement()
        except Exception as error:
            if lacks_room(error):
                self.kept[name] = None
            else:
                self.errors[name] = error_line(error)
            print(f"{self._program}: {name}: {error_line(error)}", file=sys.stderr, flush=True)
        self.write()
        return self.kept.get(name)

    def note(self, sentence: str) -> None:
        """Keep a sentence about what is not measured, and why."""
        self.notes.append(sentence)
        self.write()

    def write(self) -> None:
        """Write the json, which says that there is more to come. Where that cannot be done, `finish` says so."""
        with suppress(OSError):
            write_whole(self._file, self.text(finished=False))


def lacks_room(error: BaseException) -> bool:
    """Tell whether an error says that the device, or pinned memory, does not suffice."""
    import torch

    if isinstance(error, torch.OutOfMemoryError):
        return True
    if isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY):
        return True
    return error.__cause__ is not None and lacks_room(error.__cause__)  # a recompute that fails is told as such


def read_json(file: Path) -> dict[str, Any]:
    """Return the content of a json file; empty where there is none that can be read."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_whole(file: Path, text: str) -> None:
    """Write a file so that it is whole, or as it was, whenever the process ends."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f"{file.name}.new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, file)
