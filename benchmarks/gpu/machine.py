"""The machine of a GPU run and its versions, asked in a separate process: a run itself takes nothing of the GPU."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.figures import ROOT
from ckpt_surgery.measure.versions import installed_versions
from ckpt_surgery.text import one_line


@dataclass(frozen=True, slots=True)
class Machine:
    """The device by name, its `memory` and what is `free` of it in bytes, and the versions that matter.

    Where there is no device, `problem` says why.
    """

    device: str
    memory: int = 0
    free: int = 0
    processors: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    problem: str = ""

    @property
    def identity(self) -> dict[str, str]:
        """What measurements belong to: they are made anew where any of it has changed."""
        return {"device": self.device, "device memory": str(self.memory), **self.versions}


def this_machine(*, dry: bool) -> Machine:
    """Return the machine, as a process of its own sees it."""
    command = [sys.executable, "-m", "benchmarks.gpu.machine", *(["--dry"] if dry else [])]
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

    from benchmarks.device import PROCESSOR

    versions = {"Python": platform.python_version(), **installed_versions()}
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if dry:
        return Machine(PROCESSOR.name, processors=processors, versions=versions)
    if not torch.cuda.is_available():
        return Machine("", versions=versions, problem=why_no_gpu())
    properties: Any = torch.cuda.get_device_properties(0)
    free, memory = torch.cuda.mem_get_info(0)
    capability = f"{properties.major}.{properties.minor}"
    cudnn: Any = torch.backends.cudnn
    versions |= {
        "CUDA": str(torch.version.cuda),
        "cuDNN": str(cudnn.version()),
        "attention kernel": attention_kernel("cuda"),
    }
    return Machine(
        properties.name,
        memory,
        free,
        processors,
        {**versions, "compute capability": capability, "driver": driver_version()},
    )


def why_no_gpu() -> str:
    """Why torch sees no CUDA GPU, and what to do."""
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA: install a build for CUDA for {sys.executable}"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except Exception as error:
        said = one_line(error)
        return (
            f"torch {torch.__version__} finds no GPU that it can use ({said}): where the driver is too old for CUDA "
            f"{torch.version.cuda}, install a build of torch for an older CUDA for {sys.executable}"
        )
    return "torch sees no CUDA GPU here"


def attention_kernel(device: str) -> str:
    """Name the kernel that torch chooses for causal attention in bfloat16: "math" makes the matrix of weights."""
    import torch
    from torch.nn.attention import SDPBackend

    query = torch.empty(1, 2, 128, 64, dtype=torch.bfloat16, device=device, requires_grad=True)
    choice = torch._fused_sdp_choice(query, query, query, is_causal=True)
    return next((name.lower() for name, each in SDPBackend.__members__.items() if each.value == choice), str(choice))


def driver_version() -> str:
    """Return the version of NVIDIA's driver; empty where it is not known."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").split()
    except OSError:
        return ""
    return next((word for word in words if word[:1].isdigit() and "." in word), "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the machine as json."""
    parser = argparse.ArgumentParser(prog="machine", description=__doc__)
    parser.add_argument("--dry", action="store_true", help="the processor in place of a GPU")
    print(json.dumps(asdict(seen(dry=parser.parse_args(arguments).dry))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
