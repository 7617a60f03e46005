"""What does `fused_linear_cross_entropy` save, and at what cost? Beside torch's cross-entropy on whole logits.

The step of a language model's head alone: hidden states and head weights in, their gradients out. Peak memory and time
of both in turns, and how far loss and gradients are apart. On the processor in float32, on a CUDA GPU in bfloat16 at
the size of Llama 3's head. Prints a table of figures and targets; writes json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.device import PROCESSOR, Device, device_of
from benchmarks.figures import Figure, Target, document, finish, lacking, option_parser, plain_table

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MEBIBYTE = 2**20
PEAK = Target(5.0, at_least=True)
TIME = Target(1.6)
CLOSE = {"cpu": Target(1e-5), "cuda": Target(2e-2)}
"""Relative differences that rounding explains: float32 on the processor, bfloat16 on a GPU."""
_WARM_UP = 1
PLAIN, FUSED = "cross_entropy", "fused"


@dataclass(frozen=True, slots=True)
class Head:
    """The size of a head: tokens, hidden size, vocabulary."""

    tokens: int
    hidden: int
    vocabulary: int


SMALL, LARGE, TOY = Head(2048, 256, 16_000), Head(16_384, 4096, 128_256), Head(512, 16, 4000)


@dataclass(frozen=True, slots=True, eq=False)
class Cost:
    """Steps of one way: peak in bytes, seconds of each, loss, and gradients of hidden states and weights."""

    peak: int
    seconds: tuple[float, ...]
    loss: float
    gradients: tuple[Tensor, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Return 0; 1 where a target is missed; 2 where it could not run."""
    options = _options(arguments)
    if lacking("fused_loss", "torch"):
        return 2
    import torch

    torch.set_num_threads(1)
    device = device_of(toy=options.toy) or PROCESSOR
    head = TOY if options.toy else LARGE if device.kind == "cuda" else SMALL
    costs = measure(head, device, options.rounds)
    measured = figures(costs, device)
    shown = [plain_table(f"fused loss: {device.name}", measured)]
    size = {"tokens": head.tokens, "hidden_size": head.hidden, "vocabulary": head.vocabulary}
    text = document(measured, device=device.name, **size)
    return finish("fused_loss", measured, text, options.out, shown)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = option_parser("fused_loss", __doc__)
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="timed steps of each way (default: 5)")
    parser.add_argument("--toy", action="store_true", help="toy sizes, on the processor")
    return parser.parse_args(arguments)


def measure(head: Head, device: Device, rounds: int) -> dict[str, Cost]:
    """The cost of the plain loss and of the fused one, in turns."""
    import torch
    from torch.nn import functional

    from ckpt_surgery.distributed import fused_linear_cross_entropy

    def plain(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy((hidden @ weight.T).float(), labels)

    generator = torch.Generator().manual_seed(0)
    dtype = torch.bfloat16 if device.kind == "cuda" else torch.float32
    hidden = torch.randn(head.tokens, head.hidden, generator=generator).to(device.kind, dtype)
    weight = (torch.randn(head.vocabulary, head.hidden, generator=generator) / head.hidden**0.5).to(device.kind, dtype)
    labels = torch.randint(head.vocabulary, (head.tokens,), generator=generator).to(device.kind)
    ways: dict[str, Callable[..., Tensor]] = {PLAIN: plain, FUSED: fused_linear_cross_entropy}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    costs = {}
    for turn in range(rounds + _WARM_UP):
        for way, loss_of in ways.items():
            print(f"fused_loss: {way}, round {turn}", file=sys.stderr, flush=True)
            peak, taken, loss, gradients = _step(loss_of, (hidden, weight, labels), device)
            if turn >= _WARM_UP:
                seconds[way].append(taken)
            costs[way] = Cost(peak, tuple(seconds[way]), loss, gradients)
    return costs


def _step(
    loss_of: Callable[..., Tensor], tensors: tuple[Tensor, Tensor, Tensor], device: Device
) -> tuple[int, float, float, tuple[Tensor, ...]]:
    """Peak over what was there before, seconds, loss and gradients of one step."""
    import torch

    from ckpt_surgery.measure.meter import Meter

    hidden, weight = (tensor.detach().requires_grad_() for tensor in tensors[:2])
    device.synchronize()
    device.reset_peak()
    before = torch.cuda.memory_allocated() if device.kind == "cuda" else 0
    start = perf_counter()
    loss = loss_of(hidden, weight, tensors[2])
    torch.autograd.backward(loss)
    device.synchronize()
    taken = perf_counter() - start
    if device.kind == "cuda":
        peak = device.peak() - before
    else:
        with Meter() as meter:  # the processor has no peak of its own: tensors are counted, in another step
            counted = loss_of(*(tensor.detach().requires_grad_() for tensor in tensors[:2]), tensors[2])
            meter.start_backward(counted)
            torch.autograd.backward(counted)
        peak = max(held for _, held in meter.timeline().points)
    return peak, taken, float(loss.detach()), tuple(_gradient(tensor) for tensor in (hidden, weight))


def _gradient(tensor: Tensor) -> torch.Tensor:
    assert tensor.grad is not None
    return tensor.grad


def figures(costs: dict[str, Cost], device: Device) -> list[Figure]:
    """Peaks and seconds, their ratios, and how far the results are apart."""
    plain, fused = costs[PLAIN], costs[FUSED]
    measured = []
    for way, cost in costs.items():
        measured += [
            Figure(f"{way}: peak", (cost.peak / MEBIBYTE,), "MiB"),
            Figure(f"{way}: a step", cost.seconds, "s"),
        ]
    times = tuple(ours / theirs for ours, theirs in zip(fused.seconds, plain.seconds, strict=True))
    apart = max(
        float((ours.float() - theirs.float()).norm() / theirs.float().norm())
        for ours, theirs in zip(fused.gradients, plain.gradients, strict=True)
    )
    return [
        *measured,
        Figure(f"peak, {PLAIN} / {FUSED}", (plain.peak / fused.peak,), "x", PEAK),
        Figure(f"a step, {FUSED} / {PLAIN}", times, "x", TIME),
        Figure("loss, relative difference", (abs(fused.loss - plain.loss) / plain.loss,), "", CLOSE[device.kind]),
        Figure("gradients, largest difference", (apart,), "of their norm", CLOSE[device.kind]),
    ]


if __name__ == "__main__":
    sys.exit(main())
