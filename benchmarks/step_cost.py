"""What does a checkpointed training step cost: bytes, FLOPs, time, and Python around each call of a block?

No checkpointing, transformers' own, torch's checkpoint_wrapper on the same blocks, and `wrap_blocks`, on tiny models
of several families, on one thread of the processor or on a GPU. `wrap_blocks` has its self-check off, and the price of
a check is measured by itself. Prints what each way costs and which targets are met; writes json. Works on transformers
4 and 5, and takes about two minutes on an idle core.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.figures import finish, option_parser, plain_table, rounds_option

PLAIN_WIDTH = 140
_LAYERS = 16
_TOKENS, _TOY_TOKENS = 512, 16
_ROUNDS_TO_ONE_OF_CHECKS = 4
"""The steps that tell the price of a check take seconds, and differ less."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Return 0; 1 if a target is missed; 2 where it could not run."""
    options = _options(arguments)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    import transformers

    from benchmarks.step_cost_report import as_json, cost_table, figures
    from benchmarks.step_cost_runs import FAMILIES, measure, price_of_calls, price_of_checks

    unknown = set(options.families) - {family.name for family in FAMILIES}
    if unknown:
        names = ", ".join(f'"{family.name}"' for family in FAMILIES)
        print(f"step_cost: there is no family {min(unknown)}: those measured are {names}.", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    if options.gpu and not torch.cuda.is_available():
        print("step_cost: torch sees no CUDA device here: leave --gpu out.", file=sys.stderr)
        return 2
    _say("the price of a call")
    device = "cuda" if options.gpu else "cpu"
    rounds, chosen = (1, ("Llama",)) if options.toy else (options.rounds, options.families)
    calls = price_of_calls(_LAYERS, 10 * rounds, device)
    _say("the price of a check")
    tokens = _TOY_TOKENS if options.toy else _TOKENS
    checks = price_of_checks(max(1, rounds // _ROUNDS_TO_ONE_OF_CHECKS), device, tokens=tokens)
    families = []
    for family in FAMILIES:
        if not chosen or family.name in chosen:
            _say(family.name)
            families.append(measure(family, rounds, device))
    measured = figures(families, calls, checks)
    shown = [cost_table(families, rounds), plain_table("targets", measured)]
    return finish(
        "step_cost", measured, as_json([*families, calls, checks], measured), options.out, shown, PLAIN_WIDTH
    )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = option_parser("step_cost", __doc__)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="only these, such as Llama or Swin")
    parser.add_argument(
        "--rounds", type=rounds_option, default=20, metavar="N", help="timed steps of each (default: 20)"
    )
    parser.add_argument("--toy", action="store_true", help="one round of the first family, with few tokens")
    parser.add_argument("--gpu", action="store_true", help="on the GPU; the seconds are the host's")
    return parser.parse_args(arguments)


def _say(text: str) -> None:
    print(f"step_cost: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
