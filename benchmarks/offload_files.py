"""What does it cost to write the inputs of checkpointed blocks to files (`offload="disk"`)?

    python benchmarks/offload_files.py [--layers 24] [--steps 5] [--out FILE]

Steps of a narrow model on the CPU, which is a hard case, for it computes little for each byte: without offload, with
host memory, and with files. Prints a table of figures and targets; writes json.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.device_steps import GIGABYTE
from benchmarks.figures import Figure, Target, document, finish, lacking, machine, option_parser, plain_table
from benchmarks.offload import LAYERS, SHORT, SMALL, gradients, llama, token_ids

SEQUENCES = 16
"""So many of them in a step: the inputs of 24 layers are 201 MB then."""
FEW, NEAR = Target(0.1), Target(1.1)
NONE, HOST, FILES = "no offload", "host memory", "files"
_PLACES = {NONE: None, HOST: "cpu", FILES: "disk"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Return 0; 1 where a target is missed; 2 where it could not run."""
    parser = option_parser("offload_files", __doc__)
    parser.add_argument("--layers", type=int, default=LAYERS, metavar="N", help=f"(default: {LAYERS})")
    parser.add_argument(
        "--steps", type=int, default=5, metavar="N", help="timed steps of each way; the median counts (default: 5)"
    )
    options: argparse.Namespace = parser.parse_args(arguments)
    if lacking("offload_files", "torch", "transformers"):
        return 2
    measured = in_files(options.layers, options.steps)
    text = document(measured, layers=options.layers, sequences=SEQUENCES, tokens=SHORT)
    return finish(
        "offload_files", measured, text, options.out, [plain_table(f"offload to files: {machine()}", measured)]
    )


def in_files(layers: int, rounds: int) -> list[Figure]:
    """A step on the CPU, in float32 on one thread, whose inputs stay, go to host memory, or to files.

    Each round has one step of each, and each ratio is one of a round: what slows the machine slows all three. What
    files cost shows in processor seconds, those of the thread that copies among them, and in copies waited for.
    """
    import torch

    from ckpt_surgery import wrap_blocks

    torch.set_num_threads(1)
    model, ids = llama(layers, SMALL), token_ids(SHORT, "cpu", SEQUENCES)
    models = {name: copy.deepcopy(model) for name in _PLACES}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    processor: dict[str, list[float]] = {name: [] for name in models}
    with ExitStack() as ways:
        # what is measured is offload; its gradients are compared in benchmarks/offload.py
        surgeries: dict[str, Any] = {
            name: ways.enter_context(wrap_blocks(each, offload=_PLACES[name], self_check="never"))
            for name, each in models.items()
        }
        for timed in (False, *[True] * rounds):
            for name, each in models.items():
                start, used = perf_counter(), process_time()
                gradients(each, ids)
                if timed:
                    seconds[name].append(perf_counter() - start)
                    processor[name].append(process_time() - used)
        moved, copies = surgeries[FILES].stats, surgeries[FILES].offloader.transport.thread
    return [
        *(Figure(f"files: a step, {name}", tuple(each), "s") for name, each in seconds.items()),
        *(Figure(f"files: processor seconds, {name}", tuple(each), "s") for name, each in processor.items()),
        Figure("files: written in a step", (moved.bytes / (rounds + 1) / GIGABYTE,), "GB"),
        Figure("files: copies that a step waited for / all", (copies.waited / max(copies.copies, 1),), "x", FEW),
        Figure("files: a step, files / no offload", _ratios(seconds[FILES], seconds[NONE]), "x"),
        Figure("files: a step, files / host memory", _ratios(seconds[FILES], seconds[HOST]), "x"),
        Figure("files: processor seconds, files / no offload", _ratios(processor[FILES], processor[NONE]), "x", NEAR),
        Figure("files: processor seconds, files / host memory", _ratios(processor[FILES], processor[HOST]), "x"),
    ]


def _ratios(over: Sequence[float], under: Sequence[float]) -> tuple[float, ...]:
    return tuple(one / other for one, other in zip(over, under, strict=True))


if __name__ == "__main__":
    sys.exit(main())
