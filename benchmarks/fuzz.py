"""Does `wrap_blocks` hold its promise on random blocks, arguments and training loops? Equal, or refused by name.

Each case trains a small model with and without a surgery and compares losses, gradients, weights and state, also that
of generators. Prints cases by outcome and reason, with an example of each, and the outcomes by kind. Exits with 1
where a case fails.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks.survey import TOO_LONG, Row, Survey, rows_of

if TYPE_CHECKING:
    from benchmarks.fuzz_cases.case import Case

_SEEDS = 1_000_000
_IMPORTS = ("torch", "benchmarks.fuzz_cases.judge")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Return 1 where a case fails, 2 where it could not run."""
    parser = argparse.ArgumentParser("fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=2000, metavar="N", help="how many (default: 2000)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="another S gives other cases (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, metavar="J", help="processes at a time (default: 1)")
    parser.add_argument("--kind", metavar="KIND", help="only cases of a kind: late, caches, ... (default: all)")
    parser.add_argument("--case", metavar="CASE", help="run one case again: its seed, or what the table shows")
    options = parser.parse_args(arguments)
    try:
        if options.case is not None:
            return _one(options.case)
        return _many(cases(options.cases, options.seed, options.kind), options.jobs)
    except ValueError as error:
        print(f"fuzz: {error}.", file=sys.stderr)
        return 2


def cases(count: int, seed: int, kind: str | None = None) -> list[Case]:
    """Draw `count` cases, of a kind, by consecutive seeds that no other `seed` has. Raises ValueError."""
    from benchmarks.fuzz_cases.case import KINDS, Case

    if kind is not None and kind not in KINDS:
        raise ValueError(f"{kind} is no kind: they are {', '.join(KINDS)}")
    drawn = map(Case.drawn, range(seed * _SEEDS, (seed + 1) * _SEEDS))
    return list(islice((case for case in drawn if kind is None or kind in case.kinds), count))


def _one(text: str) -> int:
    """Run one case and print everything that differs."""
    import torch

    from benchmarks.fuzz_cases.case import Case
    from benchmarks.fuzz_cases.judge import FAILURES, judge

    torch.set_num_threads(1)
    result = judge(Case.parsed(text))
    print(result.case, result.outcome, *result.detail, sep="\n")
    return 1 if result.outcome in FAILURES else 0


def _many(chosen: Sequence[Case], jobs: int) -> int:
    """Judge cases, each in a process of its own: one that hangs or dies costs one case."""
    from benchmarks.fuzz_cases.judge import FAILURES, Outcome

    survey = Survey("fuzz", __doc__, list, judged, imports=_IMPORTS, seconds=60.0)
    start = perf_counter()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        file = Path(folder) / "rows.jsonl"
        survey.run([str(case) for case in chosen], file, jobs)
        rows = rows_of(file)
    for row in rows:
        if problem := row.get("problem"):  # its process was ended or died
            row.update(outcome=Outcome.HANG if problem == TOO_LONG else Outcome.CRASHED, reason=problem)
    print(*report(rows), sep="\n")
    print(f"{len(rows) / (perf_counter() - start):.0f} cases a second")
    outcomes = {row["outcome"] for row in rows}
    if outcomes <= {Outcome.INVALID}:
        print("no case could be judged")
        return 1
    return int(not outcomes.isdisjoint(FAILURES))


def judged(case: str) -> Row:
    """Judge a case."""
    import torch

    from benchmarks.fuzz_cases.case import Case
    from benchmarks.fuzz_cases.judge import FAILURES, judge

    torch.set_num_threads(1)
    result = judge(Case.parsed(case))
    reason = result.detail[0] if result.outcome in FAILURES and result.detail else result.reason
    return {"outcome": result.outcome, "reason": reason, "names_block": result.names_block}


def report(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the report: reasons by outcome, the most frequent first, and outcomes by kind."""
    from benchmarks.fuzz_cases.case import KINDS, Case
    from benchmarks.fuzz_cases.judge import FAILURES, REFUSALS, Outcome

    for outcome in (outcome for outcome in Outcome if outcome is not Outcome.EQUAL):
        alike: dict[str, list[str]] = defaultdict(list)
        for row in (row for row in rows if row["outcome"] == outcome):
            alike[" ".join(row["reason"].split())[:160]].append(row["case"])
        if alike:
            yield f"{'FAILING, ' if outcome in FAILURES else ''}{outcome}, with an example for --case:"
        for text, found in sorted(alike.items(), key=lambda item: -len(item[1])):
            yield f"{len(found):5} {text}  {min(found, key=len)}"
    counts = Counter((kind, row["outcome"]) for row in rows for kind in ("all", *Case.parsed(row["case"]).kinds))
    for kind in (*KINDS, "all"):
        found_of = {outcome: counts[kind, outcome] for outcome in Outcome if counts[kind, outcome]}
        yield f"{kind}: {', '.join(f'{count} {outcome}' for outcome, count in found_of.items())}"
    yield f"{sum(row['outcome'] in REFUSALS and not row['names_block'] for row in rows)} refusals name no block"


if __name__ == "__main__":
    sys.exit(main())
