"""The machine of a GPU run and its versions, asked in a separate process: a run itself takes nothing of the GPU."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.device import PROCESSOR
from benchmarks.figures import ROOT
from ckpt_surgery.measure.versions import installed_versions
from ckpt_surgery.text import one_line

DRY = "--dry"


@dataclass(frozen=True, slots=True)
class Machine:
    """The device by name, its `memory` and what is `free` of it in bytes, and the versions that matter.

    Where there is no device, `problem` says why.
    """

    device: str
    memory: int = 0
    free: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    problem: str = ""

    @property
    def identity(self) -> dict[str, str]:
        """What measurements belong to: they are made anew where any of it has changed."""
        return {"device": self.device, "device memory": str(self.memory), **self.versions}


def this_machine(*, dry: bool) -> Machine:
    """Return the machine, as a process of its own sees it."""
    command = [sys.executable, "-m", "benchmarks.gpu.machine", *([DRY] if dry else [])]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    try:
        return Machine(**json.loads(ran.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        said = (ran.stderr.strip().splitlines() or ["no words"])[-1]
        return Machine("", problem=f"Python could not look for a GPU ({said})")


def seen(*, dry: bool) -> Machine:
    """Return the machine, as this process sees it."""
    import torch

    versions = {"Python": platform.python_version(), **installed_versions()}
    if dry:
        return Machine(PROCESSOR.name, versions=versions)
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except Exception as error:  # it is built without CUDA, the driver is too old, or there is no GPU
        problem = f"torch {torch.__version__} of {sys.executable} finds no GPU that it can use ({one_line(error)})"
        return Machine("", versions=versions, problem=problem)
    properties: Any = torch.cuda.get_device_properties(0)
    free, memory = torch.cuda.mem_get_info(0)
    return Machine(properties.name, memory, free, {**versions, "CUDA": str(torch.version.cuda)})


if __name__ == "__main__":
    print(json.dumps(asdict(seen(dry=DRY in sys.argv))))
