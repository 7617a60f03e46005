"""What does a training step of a real size take: peak memory, seconds, and the host's share of them?

A Llama-like model of 1.1 billion parameters in bfloat16, on a CUDA GPU: without checkpointing, with transformers' own,
with torch's checkpoint_wrapper, with transformers' own in reentrant mode, and with `wrap_blocks`. Every ratio is taken
in the same run. Prints a table of figures and targets; writes json.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.device import Device, wanted_device
from benchmarks.figures import Figure, Target, document, finish, lacking, option_parser, plain_table
from benchmarks.progress import lacks_room

if TYPE_CHECKING:
    from torch import Tensor, nn

    from benchmarks.step_cost_runs import Way

GIGABYTE = 10**9
TOKENS, TOY_TOKENS = 8 * 1024, 64
_WARM_UP = 2
NO_MORE_MEMORY = Target(1.01)
NO_MORE_TIME = Target(1.02)


@dataclass(frozen=True, slots=True)
class Cost:
    """Steps in one way: peak in bytes, seconds of each, and the seconds until the host had queued each."""

    peak: int
    seconds: tuple[float, ...]
    host: tuple[float, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Return 0; 1 where a target is missed; 2 where it could not run."""
    options = _options(arguments)
    if lacking("step_memory", "torch", "transformers"):
        return 2
    if (device := wanted_device("step_memory", toy=options.toy)) is None:
        return 2
    from benchmarks.offload import LARGE, LAYERS, TOY, TOY_LAYERS
    from benchmarks.step_cost_runs import WAYS

    sizes, tokens, layers = (TOY, TOY_TOKENS, TOY_LAYERS) if options.toy else (LARGE, TOKENS, LAYERS)
    costs = {way: cost(way, sizes, layers, tokens, options.steps, device) for way in WAYS}
    measured = figures(costs)
    shown = [plain_table(f"a step of {tokens} tokens: {device.name}", measured)]
    text = document(measured, device=device.name, tokens=tokens, layers=layers, sizes=sizes)
    return finish("step_memory", measured, text, options.out, shown)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = option_parser("step_memory", __doc__)
    parser.add_argument("--steps", type=int, default=5, metavar="N", help="timed steps of each way (default: 5)")
    parser.add_argument("--toy", action="store_true", help="toy sizes, and the processor in place of a GPU")
    return parser.parse_args(arguments)


def cost(way: Way, sizes: Mapping[str, int], layers: int, tokens: int, steps: int, device: Device) -> Cost | None:
    """Steps in one way; None where the memory of the device does not suffice."""
    import torch

    from benchmarks.offload import llama, token_ids
    from benchmarks.step_cost_runs import switched_on

    print(f"step_memory: {way}", file=sys.stderr, flush=True)
    gc.collect()
    device.empty_cache()
    try:
        model = switched_on(llama(layers, sizes, device.kind, torch.bfloat16), way)
        ids = token_ids(tokens, device.kind)
        for _ in range(_WARM_UP):
            step(model, ids, device)
        device.reset_peak()
        timed = [step(model, ids, device) for _ in range(steps)]
    except Exception as error:
        if not lacks_room(error):
            raise
        return None
    return Cost(device.peak(), tuple(whole for whole, _ in timed), tuple(host for _, host in timed))


def step(model: nn.Module, ids: Tensor, device: Device) -> tuple[float, float]:
    """The seconds of one step, and those until the host had queued all of it."""
    import torch

    from benchmarks.offload import loss_of

    device.synchronize()
    start = perf_counter()
    model.zero_grad(set_to_none=True)
    torch.autograd.backward(loss_of(model, ids))
    queued = perf_counter()
    device.synchronize()
    return perf_counter() - start, queued - start


def figures(costs: Mapping[Way, Cost | None]) -> list[Figure]:
    """Peak and seconds of each way, and the ratios to no checkpointing and to transformers' own."""
    from benchmarks.step_cost_runs import NONE, OURS, THEIRS

    measured = []
    for way, each in costs.items():
        if each is not None:
            measured += [
                Figure(f"{way}: peak", (each.peak / GIGABYTE,), "GB"),
                Figure(f"{way}: a step", each.seconds, "s"),
                Figure(f"{way}: the host's share of a step", each.host, "s"),
            ]
    ours = costs[OURS]
    if ours is None:
        return [*measured, Figure(f"{OURS} fits", (0.0,), "", Target(1.0, at_least=True))]
    for way, name, memory, time in (
        (NONE, "none", None, None),
        (THEIRS, "transformers", NO_MORE_MEMORY, NO_MORE_TIME),
    ):
        if (other := costs[way]) is not None:
            pair = f"{OURS} / {name}"
            measured += [
                Figure(f"{pair}: peak", (ours.peak / other.peak,), "x", memory),
                Figure(f"{pair}: a step", (_ratio(ours.seconds, other.seconds),), "x", time),
            ]
    return measured


def _ratio(over: Sequence[float], under: Sequence[float]) -> float:
    return statistics.median(over) / statistics.median(under)


if __name__ == "__main__":
    sys.exit(main())
