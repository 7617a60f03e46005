"""What does each way to checkpoint cost the host, beside transformers' own checkpointing?

Steps of a tiny Llama of 24 layers on one thread of the processor: the kernels take next to nothing, so what is left is
Python and the dispatcher. Every round runs each way once, in a random order, and differences are taken within a round.
Prints microseconds for each block of a step; writes json. Two minutes on an idle core.
"""

from __future__ import annotations

import os
import statistics
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.figures import Figure, Target, document, finish, lacking, option_parser, plain_table, rounds_option

LAYERS, TOKENS = 24, 32
NONE, LIBRARY, SELECTIVE = "no checkpointing", "transformers", "torch's policy for attention"
PLAIN, ATTENTION, MATMUL, CHECKED = "wrap_blocks", "save attention", "save matmul:2", "self_check always"
OURS: Mapping[str, Mapping[str, Any]] = {
    PLAIN: {},
    ATTENTION: {"save": ["attention"]},
    MATMUL: {"save": ["matmul:2"]},
    CHECKED: {"self_check": "always"},
}
"""The options of `wrap_blocks`, by the way."""
GROUPS = (NONE, LIBRARY, SELECTIVE, PLAIN, ATTENTION, CHECKED), (LIBRARY, MATMUL)
"""The ways whose steps take turns. What one policy keeps is looked at in blocks of others, too, once it is there."""
TARGETS = {PLAIN: Target(80.0), ATTENTION: Target(250.0), MATMUL: Target(350.0), CHECKED: Target(500.0)}
"""The microseconds that a block may take more than with transformers' own checkpointing."""
FIFTH = Target(0.2)
"""What keeping attention may add, in units of what torch's policy for the same adds."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Return 1 where a target is missed, 2 where it could not run."""
    parser = option_parser("host_cost", __doc__)
    parser.add_argument("--rounds", type=rounds_option, default=40, metavar="N", help="timed steps (default: 40)")
    parser.add_argument("--toy", action="store_true", help="one round of two layers")
    options = parser.parse_args(arguments)
    if lacking("host_cost", "torch", "transformers"):
        return 2
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    layers, rounds = (2, 1) if options.toy else (LAYERS, options.rounds)
    measured = [figure for ways in GROUPS for figure in figures(seconds_of(ways, layers, rounds), layers)]
    return finish(
        "host_cost", measured, document(measured, layers=layers), options.out, [plain_table("host_cost", measured)]
    )


def seconds_of(ways: Sequence[str], layers: int, rounds: int) -> Mapping[str, Sequence[float]]:
    """Time each round's step in each way."""
    import torch

    from benchmarks.step_cost import timed

    ids = torch.randint(0, 128, (1, TOKENS), generator=torch.Generator().manual_seed(1))
    return timed({way: ready(way, layers) for way in ways}, {"input_ids": ids, "labels": ids}, rounds)


def ready(way: str, layers: int) -> Any:
    """Make a tiny Llama that is checkpointed in this way."""
    import torch
    from torch.utils.checkpoint import create_selective_checkpoint_contexts
    from transformers import LlamaConfig, LlamaForCausalLM

    from benchmarks.gpu_steps import keeps_attention
    from ckpt_surgery import wrap_blocks

    torch.manual_seed(0)
    sizes = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 256}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "attn_implementation": "sdpa", "use_cache": False}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, num_hidden_layers=layers)).train()
    if way in OURS:
        wrap_blocks(model, **{"self_check": "never", **OURS[way]})
    elif way != NONE:
        contexts: dict[str, Callable[[], Any]] = {}
        if way == SELECTIVE:
            contexts["context_fn"] = partial(create_selective_checkpoint_contexts, keeps_attention)
        model.gradient_checkpointing_enable({"use_reentrant": False, **contexts})
    return model


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
