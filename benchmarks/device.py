"""The device that a benchmark runs on: the first CUDA GPU, or the processor in its place for a dry run."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass
from typing import Any

from benchmarks.figures import machine

GIGABYTE = 10**9


@dataclass(frozen=True, slots=True)
class Device:
    """A device: torch's name for its kind, `cuda` or `cpu`, and its maker's name."""

    kind: str
    name: str

    def synchronize(self) -> None:
        """Wait until everything that was queued on the device is done."""
        if self.kind == "cuda":
            import torch

            torch.cuda.synchronize()

    def empty_cache(self) -> None:
        """Give memory that no tensor uses back to the device."""
        if self.kind == "cuda":
            import torch

            torch.cuda.empty_cache()
            torch.accelerator.empty_host_cache()  # memory that torch has pinned, which other ways may need

    def reset_peak(self) -> None:
        """Measure the peak from here on. On the processor there is no such reset."""
        if self.kind == "cuda":
            import torch

            torch.cuda.reset_peak_memory_stats()

    def peak(self) -> int:
        """Return the most bytes that tensors held at once; on the processor, the most that the process held."""
        if self.kind == "cuda":
            import torch

            return torch.cuda.max_memory_allocated()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


PROCESSOR = Device("cpu", f"the processor ({machine()})")


def wanted_device(benchmark: str, *, toy: bool) -> Device | None:
    """Return the GPU that torch sees, or the processor for toy sizes; where there is neither, say what to do."""
    if toy:
        return PROCESSOR
    import torch

    if torch.cuda.is_available():
        return Device("cuda", torch.cuda.get_device_name())
    print(f"{benchmark}: torch sees no CUDA device here: give --toy to see that it runs.", file=sys.stderr)
    return None


def own_switch(model: Any, end: str) -> Any:
    """Return the method of transformers that switches checkpointing on (`enable`) or off (`disable`)."""
    new, old = f"activation_checkpointing_{end}", f"gradient_checkpointing_{end}"
    return getattr(model, new if hasattr(model, new) else old)
