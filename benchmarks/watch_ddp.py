"""What does `watch_ddp` cost? Its part of a training step of a Llama-like model under DistributedDataParallel.

A watch adds one call for every parameter that a backward reaches. That is measured where it can be seen, in steps of
many tiny parameters with and without a watch in turn, and held against a step of the larger model. One process, one
thread, no GPU. Prints a table of figures and targets; writes json.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.figures import Figure, Target, document, finish, lacking, option_parser, plain_table

if TYPE_CHECKING:
    from torch import nn

MANY = 500
"""Parameters of the model that shows the price of one."""
TOKENS, LAYERS, HIDDEN = 512, 6, 256
PART = Target(1.0)
"""Per cent of a step."""
_WARM_UP = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Return 0; 1 where a target is missed; 2 where it could not run."""
    options = _options(arguments)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if lacking("watch_ddp", "torch", "transformers"):
        return 2
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        measured = figures(options.rounds)
    finally:
        gc.collect()  # a reducer must not be the last to hold its process group
        dist.destroy_process_group()
    shown = [plain_table(f"watch_ddp: medians of {options.rounds} steps", measured)]
    return finish("watch_ddp", measured, document(measured), options.out, shown)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = option_parser("watch_ddp", __doc__)
    parser.add_argument("--rounds", type=int, default=60, metavar="N", help="steps of each kind (default: 60)")
    return parser.parse_args(arguments)


def figures(rounds: int) -> list[Figure]:
    """The price of one parameter, the step that it is a part of, and the part."""
    many, loss = many_parameters()
    bare, watched = in_turn(many, loss, rounds)
    price = (statistics.median(watched) - statistics.median(bare)) / MANY
    model, loss = llama()
    reached = sum(parameter.requires_grad for parameter in model.parameters())
    step = statistics.median(in_turn(model, loss, max(3, rounds // 6))[0])
    return [
        Figure(f"a step of {MANY} tiny parameters", tuple(1e3 * seconds for seconds in bare), "ms"),
        Figure("the same with a watch", tuple(1e3 * seconds for seconds in watched), "ms"),
        Figure("the watch, for one parameter", (1e6 * price,), "us"),
        Figure(f"a step of Llama, {reached} parameters, {TOKENS} tokens", (1e3 * step,), "ms"),
        Figure("the watch's part of it", (100 * price * reached / step,), "%", PART),
    ]


def in_turn(
    model: nn.Module, loss: Callable[[nn.Module], Any], rounds: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Processor seconds of `rounds` forwards and backwards without and with a watch; every round has one of each."""
    from torch.nn.parallel import DistributedDataParallel

    from ckpt_surgery.distributed import watch_ddp

    ddp = DistributedDataParallel(model)
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(_WARM_UP + rounds):
        for watching, taken in enumerate(seconds):
            ddp.zero_grad()
            with watch_ddp(ddp, action="raise") if watching else nullcontext():
                start = process_time()
                loss(ddp).backward()
                taken.append(process_time() - start)
    bare, watched = (tuple(taken[_WARM_UP:]) for taken in seconds)
    return bare, watched


def many_parameters() -> tuple[nn.Module, Callable[[nn.Module], Any]]:
    """A model of nothing but parameters."""
    import torch
    from torch import nn

    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.values = nn.ParameterList(nn.Parameter(torch.ones(4)) for _ in range(MANY))

        def forward(self) -> Any:
            return torch.stack(list(self.values)).sum()

    return Many(), lambda model: model()


def llama() -> tuple[nn.Module, Callable[[nn.Module], Any]]:
    """A Llama of six layers."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=1024, hidden_size=HIDDEN, intermediate_size=4 * HIDDEN, num_hidden_layers=LAYERS, **heads
        )
    )
    ids = torch.randint(1024, (1, TOKENS))
    return model.train(), lambda ddp: ddp(input_ids=ids, labels=ids).loss


if __name__ == "__main__":
    sys.exit(main())
