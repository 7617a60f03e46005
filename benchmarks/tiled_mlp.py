"""What does `tile_mlp` save, and at what cost? A step of one gated MLP and of one decoder layer.

In float32, and on a CUDA GPU in bfloat16: it has no kernel for attention in float32 with fewer keys than queries, and
would make the whole matrix of weights.

Counted operator by operator: bytes kept for the backward, the most bytes alive at one time, FLOPs. Bytes are of all
that the step makes: results, gradients and what is between. Also the time of a step, tiled and untiled in turns, and
how far gradients are apart. Prints a table of figures and targets; writes json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
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
    from torch import Tensor, nn

MEBIBYTE = 2**20
SHARDS = (4, 16, 64)
AIM = 16
"""The number of shards that has targets."""
MLP, LAYER = "MLP", "layer"
PEAK = {MLP: Target(5.8, at_least=True), LAYER: None}
FLOPS = {MLP: Target(1.25), LAYER: None}
TIME = {MLP: Target(1.5), LAYER: None}
CLOSE = {"cpu": Target(1e-5), "cuda": Target(2e-2)}
"""Relative differences that rounding explains: float32 on the processor, bfloat16 on a GPU."""
UNTILED = 0
_WARM_UP = 1


@dataclass(frozen=True, slots=True)
class Size:
    """A sequence length, and what the configuration of the layer says."""

    tokens: int
    options: Mapping[str, int]


SMALL = Size(4096, {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4, "num_key_value_heads": 2})
TOY = Size(256, {"hidden_size": 16, "intermediate_size": 256, "num_attention_heads": 2, "num_key_value_heads": 1})
LARGE = Size(
    32 * 1024, {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}
)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What takes a step, and the MLPs in it."""

    module: nn.Module
    mlps: Sequence[nn.Module]
    run: Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Cost:
    """What steps of one way cost: bytes and FLOPs of one, seconds of each, and the gradients of the last."""

    kept: int
    peak: int
    flops: int
    seconds: tuple[float, ...]
    gradients: Mapping[str, Tensor]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Return 0; 1 where a target is missed; 2 where it could not run."""
    options = _options(arguments)
    if lacking("tiled_mlp", "torch", "transformers"):
        return 2
    import torch

    torch.set_num_threads(1)
    measured: list[Figure] = []
    device = PROCESSOR
    if options.gpu:
        gpu = device_of(toy=False)
        if gpu is None:
            print("tiled_mlp: torch sees no CUDA device here: leave --gpu out.", file=sys.stderr)
            return 2
        device = gpu
    size = LARGE if options.gpu else TOY if options.toy else SMALL
    for name, part in parts(size, device).items():
        print(f"tiled_mlp: {name}, {size.tokens} tokens", file=sys.stderr, flush=True)
        measured += figures(name, costs(part, size, device, options.rounds), device)
    shown = [plain_table(f"tiled MLPs: {device.name}", measured)]
    text = document(measured, device=device.name, tokens=size.tokens, sizes=size.options)
    return finish("tiled_mlp", measured, text, options.out, shown)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = option_parser("tiled_mlp", __doc__)
    parser.add_argument(
        "--rounds", type=int, default=7, metavar="N", help="timed rounds; the median counts (default: 7)"
    )
    parser.add_argument("--toy", action="store_true", help="toy sizes")
    parser.add_argument("--gpu", action="store_true", help="on the GPU, at the size of an 8-billion-parameter model")
    return parser.parse_args(arguments)


def parts(size: Size, device: Device = PROCESSOR) -> dict[str, Part]:
    """One layer of a Llama-like model, with no more around it than it needs, and the MLP in it."""
    import torch
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    config = LlamaConfig(
        **size.options,
        num_hidden_layers=1,
        vocab_size=8,
        max_position_embeddings=size.tokens,
        pad_token_id=0,
        use_cache=False,
    )
    config._attn_implementation = "sdpa"
    model = LlamaModel(config).to(device.kind, _dtype(device)).train()
    mlp = model.layers[0].mlp
    return {
        MLP: Part(mlp, [mlp], mlp),
        LAYER: Part(model, [mlp], lambda values: model(inputs_embeds=values).last_hidden_state),
    }


def costs(part: Part, size: Size, device: Device, rounds: int) -> dict[int, Cost]:
    """The cost of each number of shards, all of them in every round."""
    import torch

    from ckpt_surgery.long_sequences.tiled import tile_mlp

    generator = torch.Generator().manual_seed(0)
    shape = (1, size.tokens, size.options["hidden_size"])
    values, above = (torch.randn(shape, generator=generator).to(device.kind, _dtype(device)) for _ in range(2))
    ways = (UNTILED, *SHARDS)
    seconds: dict[int, list[float]] = {way: [] for way in ways}
    gradients: dict[int, Mapping[str, Tensor]] = {}
    counted: dict[int, tuple[int, int, int]] = {}
    for turn in range(rounds + _WARM_UP):
        for way in ways:
            with nullcontext() if way == UNTILED else tile_mlp(part.mlps, num_shards=way):
                device.synchronize()
                start = perf_counter()
                gradients[way] = step(part, values, above)
                device.synchronize()
                if turn >= _WARM_UP:
                    seconds[way].append(perf_counter() - start)
                else:
                    counted[way] = count(part, values, above)
    return {way: Cost(*counted[way], tuple(seconds[way]), gradients[way]) for way in ways}


def step(part: Part, values: Tensor, above: Tensor) -> dict[str, Tensor]:
    """The gradients of one step, that of the input among them."""
    import torch

    leaf = _start(part, values)
    torch.autograd.backward(part.run(leaf), above)
    named = (*part.module.named_parameters(), ("", leaf))
    return {name: tensor.grad for name, tensor in named if tensor.grad is not None}


def count(part: Part, values: Tensor, above: Tensor) -> tuple[int, int, int]:
    """The bytes that a step keeps for its backward, the most that it has at one time, and its FLOPs."""
    import torch

    from ckpt_surgery.measure.meter import Meter

    leaf = _start(part, values)
    with Meter() as meter:
        result = part.run(leaf)
        meter.start_backward(result)
        torch.autograd.backward(result, above)
    peak = max(held for _, held in meter.timeline().points)
    return meter.kept_bytes, peak, meter.flops.forward + meter.flops.backward


def _start(part: Part, values: Tensor) -> Tensor:
    part.module.zero_grad(set_to_none=True)
    return values.clone().requires_grad_()


def figures(name: str, by_shards: Mapping[int, Cost], device: Device = PROCESSOR) -> list[Figure]:
    """What a part shows. A ratio of times is taken within each round: other load hits both alike."""
    plain = by_shards[UNTILED]
    measured = []
    for shards, cost in by_shards.items():
        way = f"{name}, {shards} shards" if shards else f"{name}, untiled"
        measured += [
            Figure(f"{way}: kept for the backward", (cost.kept / MEBIBYTE,), "MiB"),
            Figure(f"{way}: peak", (cost.peak / MEBIBYTE,), "MiB"),
            Figure(f"{way}: a step", cost.seconds, "s"),
        ]
    for shards, cost in by_shards.items():
        if shards == UNTILED:
            continue
        times = tuple(one / other for one, other in zip(cost.seconds, plain.seconds, strict=True))
        aimed = shards == AIM
        way = f"{name}, {shards} shards"
        measured += [
            Figure(f"{way}: peak, untiled / tiled", (plain.peak / cost.peak,), "x", PEAK[name] if aimed else None),
            Figure(f"{way}: FLOPs, tiled / untiled", (cost.flops / plain.flops,), "x", FLOPS[name] if aimed else None),
            Figure(f"{way}: a step, tiled / untiled", times, "x", TIME[name] if aimed else None),
            Figure(
                f"{way}: gradients, largest difference", (_apart(cost, plain),), "of their norm", CLOSE[device.kind]
            ),
        ]
    return measured


def _apart(cost: Cost, plain: Cost) -> float:
    """The largest difference of any gradient, by its norm; infinite where one is missing."""
    if cost.gradients.keys() != plain.gradients.keys():
        return float("inf")
    pairs = ((cost.gradients[name], wanted) for name, wanted in plain.gradients.items())
    return max(float((tiled.float() - wanted.float()).norm() / wanted.float().norm()) for tiled, wanted in pairs)


def _dtype(device: Device) -> torch.dtype:
    import torch

    return torch.bfloat16 if device.kind == "cuda" else torch.float32


if __name__ == "__main__":
    sys.exit(main())
