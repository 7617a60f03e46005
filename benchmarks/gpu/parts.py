"""The parts of a GPU run, the most telling first. Each is one command that writes one json; none knows the others."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Part:
    """One part: the question that it answers, its command, and the seconds after which it is stopped.

    `arguments` follow the interpreter; `toy` is added for a dry run, `real` otherwise. `--out FILE` names the json.
    `plotted` are the starts of the names of figures that the page draws as bars.
    """

    name: str
    question: str
    arguments: tuple[str, ...]
    seconds: int
    real: tuple[str, ...] = ()
    toy: tuple[str, ...] = ()
    plotted: tuple[str, ...] = ()

    def command(self, out: Path, *, dry: bool) -> Sequence[str]:
        """The command that runs it and writes `out`."""
        return [sys.executable, *self.arguments, *(self.toy if dry else self.real), "--out", str(out)]


PARTS = (
    Part(
        "offload",
        "What does activation offload take off the GPU, and at what cost?",
        ("-m", "benchmarks.offload"),
        600,
        real=("--tokens", "8192", "32768"),
        toy=("--toy", "--steps", "1"),
        plotted=("8K: peak", "32K: peak"),
    ),
    Part(
        "step_memory",
        "What does a step of a 1.1-billion-parameter model take, in every way to checkpoint it?",
        ("-m", "benchmarks.step_memory"),
        300,
        toy=("--toy", "--steps", "1"),
        plotted=("no checkpointing: peak", "transformers: peak", "checkpoint_wrapper: peak", "wrap_blocks: peak"),
    ),
    Part(
        "tests",
        "Do the tests marked `gpu` pass?",
        ("-m", "benchmarks.gpu.tests"),
        300,
        toy=("--dry",),
    ),
    Part(
        "plan_on_gpu",
        "Does a step take the memory that `explain` says, and is a plan as fast as every n-th block?",
        ("-m", "benchmarks.plan_on_gpu"),
        600,
        toy=("--toy", "--steps", "1"),
    ),
    Part(
        "step_cost",
        "What does a checkpointed step of tiny models cost: bytes, FLOPs, and the host's time for a call?",
        ("-m", "benchmarks.step_cost"),
        300,
        real=("--gpu",),
        toy=("--toy",),
    ),
    Part(
        "fused_loss",
        "What does the fused loss save on the head of a large vocabulary?",
        ("-m", "benchmarks.fused_loss"),
        180,
        toy=("--toy", "--rounds", "1"),
        plotted=("cross_entropy: peak", "fused: peak"),
    ),
    Part(
        "tiled_mlp",
        "What do tiled MLPs save at long sequences?",
        ("-m", "benchmarks.tiled_mlp"),
        180,
        real=("--gpu", "--rounds", "3"),
        toy=("--toy", "--rounds", "1"),
        plotted=("MLP, untiled: peak", "MLP, 4 shards: peak", "MLP, 16 shards: peak", "MLP, 64 shards: peak"),
    ),
    Part(
        "offload_128k",
        "And at 128K tokens?",
        ("-m", "benchmarks.offload"),
        600,
        real=("--tokens", "131072"),
        toy=("--toy", "--steps", "1", "--tokens", "256"),
        plotted=("128K: peak",),
    ),
)
