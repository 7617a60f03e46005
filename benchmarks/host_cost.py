"""What does each way to checkpoint cost the host, beside transformers' own checkpointing?

Steps of a tiny Llama of 24 layers: the kernels take next to nothing, so what is left is Python and the dispatcher. On
one thread of the processor, or with --gpu on a GPU, where a step ends when the host has queued it. Every round runs
each way once, in a random order, and differences are taken within a round. Prints microseconds for each block of a
step; writes json. Two minutes on an idle core.
"""

from __future__ import annotations

import gc
import os
import random
import statistics
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from time import perf_counter, process_time
from typing import TYPE_CHECKING

from benchmarks.figures import Figure, Target, document, finish, option_parser
from benchmarks.gpu_steps import ATTENTION, CHECKED, LIBRARY, MATMUL, NONE, OURS, SELECTIVE, WAYS

if TYPE_CHECKING:
    from torch import nn

LAYERS, TOKENS = 24, 32
GROUPS = (NONE, LIBRARY, SELECTIVE, OURS, ATTENTION, CHECKED), (LIBRARY, MATMUL)
"""The ways whose steps take turns. What one policy keeps is looked at in blocks of others, too, once it is there."""
TARGETS = {OURS: Target(80.0), ATTENTION: Target(250.0), MATMUL: Target(350.0), CHECKED: Target(500.0)}
"""The microseconds that a block may take more than with transformers' own checkpointing."""
FIFTH = Target(0.2)
"""What keeping attention may add, in units of what torch's policy for the same adds."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Return 1 where a target is missed."""
    parser = option_parser("host_cost", __doc__)
    parser.add_argument("--rounds", type=int, default=40, metavar="N", help="timed steps (default: 40)")
    parser.add_argument("--toy", action="store_true", help="one round of two layers")
    parser.add_argument("--gpu", action="store_true", help="on the GPU")
    options = parser.parse_args(arguments)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    layers, rounds = (2, 1) if options.toy else (LAYERS, options.rounds)
    device = "cuda" if options.gpu else "cpu"
    measured = [figure for ways in GROUPS for figure in figures(seconds_of(ways, layers, rounds, device), layers)]
    return finish(measured, document(measured, layers=layers), options.out)


def seconds_of(ways: Sequence[str], layers: int, rounds: int, device: str) -> Mapping[str, Sequence[float]]:
    """Time each round's step in each way, behind those in which every block checks itself.

    A step right after one of the same model finds warm caches: in a fixed order that would always be the same models.
    """
    import torch

    from ckpt_surgery.runtime.self_check.schedule import FIRST_STEPS

    ids = torch.randint(0, 128, (1, TOKENS), generator=torch.Generator().manual_seed(1)).to(device)
    clock = process_time if device == "cpu" else perf_counter
    models = {way: llama(layers).to(device) for way in ways}

    def step(way: str) -> float:
        models[way].zero_grad(set_to_none=True)
        if device != "cpu":
            torch.cuda.synchronize()
        start = clock()
        models[way](input_ids=ids, labels=ids).loss.backward()
        return clock() - start

    seconds: dict[str, list[float]] = {way: [] for way in ways}
    shuffled = random.Random(0)
    with ExitStack() as checkpointed:
        for way in ways:
            checkpointed.enter_context(WAYS[way](models[way]))
            for _ in range(FIRST_STEPS):
                step(way)
        gc.collect()
        for _ in range(rounds):
            for way in shuffled.sample(ways, len(ways)):
                seconds[way].append(step(way))
    return seconds


def llama(layers: int) -> nn.Module:
    """Make a tiny Llama."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 256}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "attn_implementation": "sdpa", "use_cache": False}
    model: nn.Module = LlamaForCausalLM(LlamaConfig(**sizes, **heads, num_hidden_layers=layers))
    return model.train()


def figures(seconds: Mapping[str, Sequence[float]], layers: int) -> list[Figure]:
    """Return what a block takes with transformers' own checkpointing, and the others more than that, by round."""

    def more(way: str) -> list[float]:
        return [(each - own) / layers * 1e6 for each, own in zip(seconds[way], seconds[LIBRARY], strict=True)]

    ways = [way for way in seconds if way != LIBRARY]
    found = [Figure(f"{LIBRARY}: a block", tuple(each / layers * 1e6 for each in seconds[LIBRARY]), "us")]
    found += [Figure(f"{way}: more", tuple(more(way)), "us", TARGETS.get(way)) for way in ways]
    if SELECTIVE in ways:
        ours, theirs = (statistics.median(more(way)) for way in (ATTENTION, SELECTIVE))
        found.append(Figure(f"{ATTENTION}, in units of {SELECTIVE}", (ours / theirs,), "x", FIFTH))
    return found


if __name__ == "__main__":
    sys.exit(main())
