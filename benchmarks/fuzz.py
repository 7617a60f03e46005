"""Does `wrap_blocks` hold its promise on random blocks, arguments and training loops? Equal, or refused by name.

Each case trains a small model with and without a surgery and compares losses, gradients, weights and state, also that
of generators. Prints the reasons of refusals, the smallest case for everything that fails, and the outcomes by kind.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.figures import lacking
from benchmarks.screen import console_of

if TYPE_CHECKING:
    from benchmarks.fuzz_cases.case import Case
    from benchmarks.fuzz_cases.run import SelfCheck

PLAIN_WIDTH = 200
_TOLD_EVERY = 500
_SEEDS = 1_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Return 0; 1 where a case fails; 2 where it could not run."""
    options = _options(arguments)
    if lacking("fuzz", "torch", "numpy"):
        return 2
    if options.case is not None:
        return _one(options.case, options.self_check)
    return _many(options)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cases", type=int, default=2000, metavar="N", help="how many (default: 2000)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="another S gives other cases (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, metavar="J", help="worker processes (default: 1)")
    parser.add_argument("--kind", metavar="KIND", help="only cases of a kind: late, caches, ... (default: all)")
    parser.add_argument("--self-check", type=_self_check, help="first, always, never, or an interval of steps")
    parser.add_argument("--whole", action="store_true", help="do not minimise what fails")
    parser.add_argument("--case", metavar="CASE", help="run one case again: its seed, or what the table shows")
    return parser.parse_args(arguments)


def _self_check(text: str) -> str | int:
    """An interval of steps as a number, or a word."""
    return int(text) if text.isdigit() else text


def _one(text: str, self_check: SelfCheck | None) -> int:
    """Run one case and print everything that differs."""
    import torch

    from benchmarks.fuzz_cases.case import Case
    from benchmarks.fuzz_cases.judge import FAILURES, judge
    from benchmarks.fuzz_cases.run import treatment_of

    torch.set_num_threads(1)
    try:
        case = Case.parsed(text)
    except ValueError as error:
        print(f"fuzz: {error}.", file=sys.stderr)
        return 2
    result = judge(case, treatment_of(self_check))
    print(case, result.outcome, *result.detail, sep="\n")
    return 1 if result.outcome in FAILURES else 0


def cases(count: int, seed: int, kind: str | None = None) -> list[Case]:
    """`count` cases, of a kind, by consecutive seeds that no other `seed` has. Raises ValueError."""
    from benchmarks.fuzz_cases.case import Case
    from benchmarks.fuzz_cases.catalog import KINDS

    if kind is not None and kind not in KINDS:
        raise ValueError(f"{kind} is no kind: they are {', '.join(KINDS)}")
    first = seed * _SEEDS
    drawn = map(Case.drawn, range(first, first + _SEEDS))
    return list(islice((case for case in drawn if kind is None or kind in case.kinds), count))


def _many(options: argparse.Namespace) -> int:
    from benchmarks.fuzz_cases.judge import FAILURES
    from benchmarks.fuzz_cases.pool import Work, judged
    from benchmarks.fuzz_cases.report import tables

    try:
        chosen = cases(options.cases, options.seed, options.kind)
    except ValueError as error:
        print(f"fuzz: {error}.", file=sys.stderr)
        return 2
    start, results = perf_counter(), []
    work = Work(options.self_check, minimise=not options.whole)
    for pair in judged(chosen, options.jobs, work):
        results.append(pair)
        if len(results) % _TOLD_EVERY == 0:
            print(f"fuzz: {len(results)} cases, {perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    console = console_of(PLAIN_WIDTH)
    for part in tables(results):
        console.print(part, highlight=False)
    console.print(f"{len(results) / (perf_counter() - start):.0f} cases a second", highlight=False)
    return 1 if any(pair.result.outcome in FAILURES for pair in results) else 0


if __name__ == "__main__":
    sys.exit(main())
