"""Does `wrap_blocks` hold its promise on random models and training loops? Equal, or refused by name.

Each case trains a small model with and without a surgery and compares losses, gradients, weights and state, also that
of generators. Prints how many cases came out how, with an example of each reason. Exits with 1 where a case fails.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.survey import Row, Survey, rows_of

_SEEDS = 1_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Return 1 where a case fails, or none could be judged."""
    parser = argparse.ArgumentParser("fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=2000, metavar="N", help="how many (default: 2000)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="another S gives other cases (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, metavar="J", help="processes at a time (default: 1)")
    parser.add_argument("--case", type=int, metavar="CASE", help="run one case again, and show what differs")
    options = parser.parse_args(arguments)
    if options.case is not None:
        return _one(options.case)
    first = options.seed * _SEEDS
    return _many(range(first, first + options.cases), options.jobs)


def _one(seed: int) -> int:
    """Run one case and print everything that differs."""
    from benchmarks.fuzz.case import Case
    from benchmarks.fuzz.judge import FAILURES, judge

    case = Case.drawn(seed)
    result = judge(case)
    print(case, result.outcome, *result.details, sep="\n")
    return int(result.outcome in FAILURES)


def _many(seeds: Sequence[int], jobs: int) -> int:
    """Judge cases, each in a process of its own: one that hangs or dies costs one case."""
    from benchmarks.fuzz.judge import FAILURES, Outcome

    survey = Survey("fuzz", __doc__, list, judged, imports=("benchmarks.fuzz.judge",), seconds=60.0)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        file = Path(folder) / "rows.jsonl"
        survey.run([str(seed) for seed in seeds], file, jobs)
        rows = [{"outcome": Outcome.FAILED, "reason": row.get("problem"), **row} for row in rows_of(file)]
    print(*report(rows), sep="\n")
    outcomes = {row["outcome"] for row in rows}
    return int(outcomes <= {Outcome.INVALID} or not outcomes.isdisjoint(FAILURES))


def judged(case: str) -> Row:
    """Judge the case of a seed."""
    import torch

    from benchmarks.fuzz.case import Case
    from benchmarks.fuzz.judge import judge

    torch.set_num_threads(1)
    result = judge(Case.drawn(int(case)))
    return {"outcome": result.outcome, "reason": result.reason}


def report(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield how many cases came out how, and the reasons, the most frequent first."""
    for outcome, count in Counter(row["outcome"] for row in rows).most_common():
        yield f"{count} {outcome}"
        alike: dict[str, list[str]] = defaultdict(list)
        for row in rows:
            if row["outcome"] == outcome and row["reason"]:
                alike[row["reason"]].append(row["case"])
        for reason, cases in sorted(alike.items(), key=lambda item: -len(item[1])):
            yield f"{len(cases):5} {reason}, as --case {cases[0]}"


if __name__ == "__main__":
    sys.exit(main())
