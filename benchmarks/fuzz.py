"""Does `wrap_blocks` hold its promise on random blocks, arguments and training loops? Equal, or refused by name.

Each case trains a small model with and without a surgery and compares losses, gradients, weights and state, also that
of generators. Prints the reasons of refusals, the smallest case for everything that fails, and the outcomes by kind.
Exits with 1 where a case fails.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks.figures import lacking
from benchmarks.survey import TOO_LONG, Row, Survey, rows_of

if TYPE_CHECKING:
    from benchmarks.fuzz_cases.case import Case
    from benchmarks.fuzz_cases.run import SelfCheck

SECONDS = 60.0
"""How long a case may take, with its minimising."""
_SEEDS = 1_000_000
_IMPORTS = ("torch", "benchmarks.fuzz_cases.judge")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Return 1 where a case fails, 2 where it could not run."""
    parser = argparse.ArgumentParser("fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=2000, metavar="N", help="how many (default: 2000)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="another S gives other cases (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, metavar="J", help="processes at a time (default: 1)")
    parser.add_argument("--kind", metavar="KIND", help="only cases of a kind: late, caches, ... (default: all)")
    parser.add_argument("--self-check", type=_self_check, help="first, always, never, or an interval of steps")
    parser.add_argument("--case", metavar="CASE", help="run one case again: its seed, or what the table shows")
    options = parser.parse_args(arguments)
    if lacking("fuzz", "torch", "numpy"):
        return 2
    try:
        if options.case is not None:
            return _one(options.case, options.self_check)
        return _many(cases(options.cases, options.seed, options.kind), options.jobs, options.self_check)
    except ValueError as error:
        print(f"fuzz: {error}.", file=sys.stderr)
        return 2


def _self_check(text: str) -> str | int:
    return int(text) if text.isdigit() else text


def cases(count: int, seed: int, kind: str | None = None) -> list[Case]:
    """Draw `count` cases, of a kind, by consecutive seeds that no other `seed` has. Raises ValueError."""
    from benchmarks.fuzz_cases.case import KINDS, Case

    if kind is not None and kind not in KINDS:
        raise ValueError(f"{kind} is no kind: they are {', '.join(KINDS)}")
    drawn = map(Case.drawn, range(seed * _SEEDS, (seed + 1) * _SEEDS))
    return list(islice((case for case in drawn if kind is None or kind in case.kinds), count))


def _one(text: str, self_check: SelfCheck | None) -> int:
    """Run one case and print everything that differs."""
    import torch

    from benchmarks.fuzz_cases.case import Case
    from benchmarks.fuzz_cases.judge import FAILURES, judge
    from benchmarks.fuzz_cases.run import treatment_of

    torch.set_num_threads(1)
    result = judge(Case.parsed(text), treatment_of(self_check))
    print(result.case, result.outcome, *result.detail, sep="\n")
    return 1 if result.outcome in FAILURES else 0


def _many(chosen: Sequence[Case], jobs: int, self_check: SelfCheck | None) -> int:
    """Judge cases, each in a process of its own: one that hangs or dies costs one case."""
    from benchmarks.fuzz_cases.judge import FAILURES, Outcome

    names = [str(case) for case in chosen]
    survey = Survey("fuzz", __doc__, lambda: names, partial(_judged, self_check), imports=_IMPORTS, seconds=SECONDS)
    start = perf_counter()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        file = Path(folder) / "rows.jsonl"
        survey.run(names, file, jobs)
        rows = rows_of(file)
    for row in rows:
        if problem := row.get("problem"):  # its process was ended or died
            outcome = Outcome.HANG if problem == TOO_LONG else Outcome.CRASHED
            row.update(outcome=outcome, reason=problem, detail=problem, names_block=True, smallest=row["case"])
    print(*report(rows), sep="\n")
    print(f"{len(rows) / (perf_counter() - start):.0f} cases a second")
    outcomes = {row["outcome"] for row in rows}
    if outcomes <= {Outcome.INVALID}:
        print("no case could be judged")
        return 1
    return int(not outcomes.isdisjoint(FAILURES))


def _judged(self_check: SelfCheck | None, case: str) -> Row:
    """Judge a case, and minimise what fails."""
    import torch

    from benchmarks.fuzz_cases.case import Case
    from benchmarks.fuzz_cases.judge import FAILURES, judge, minimised
    from benchmarks.fuzz_cases.run import treatment_of

    torch.set_num_threads(1)
    run = partial(judge, treatment=treatment_of(self_check))
    result = run(Case.parsed(case))
    smallest = minimised(result, run) if result.outcome in FAILURES else result
    return {
        "outcome": result.outcome,
        "reason": result.reason,
        "names_block": result.names_block,
        "smallest": str(smallest.case),
        "detail": smallest.detail[0] if smallest.detail else smallest.reason,
    }


def report(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the report: why cases were refused, what fails, and outcomes by kind."""
    from benchmarks.fuzz_cases.case import KINDS, Case
    from benchmarks.fuzz_cases.judge import FAILURES, REFUSALS, Outcome

    for outcome in (Outcome.REFUSED, Outcome.FALSE_ALARM, Outcome.HARMLESS, Outcome.TORCH_RAISES, Outcome.INVALID):
        alike = [(row["reason"], row["case"]) for row in rows if row["outcome"] == outcome]
        yield from _groups(f"{outcome}, with an example for --case", alike)
    failing = [row for row in rows if row["outcome"] in FAILURES]
    keys = [f"{row['outcome']}: {' '.join(row['detail'].split())[:160]}" for row in failing]
    yield from _groups("FAILING, minimised", zip(keys, [row["smallest"] for row in failing], strict=True))
    counts = Counter((kind, row["outcome"]) for row in rows for kind in ("all", *Case.parsed(row["case"]).kinds))
    for kind in (*KINDS, "all"):
        found = {outcome: counts[kind, outcome] for outcome in Outcome if counts[kind, outcome]}
        yield f"{kind}: {', '.join(f'{count} {outcome}' for outcome, count in found.items())}"
    yield f"{sum(row['outcome'] in REFUSALS and not row['names_block'] for row in rows)} refusals name no block"


def _groups(title: str, pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Return what is alike once, with how often and the shortest case, the most frequent first."""
    alike: dict[str, list[str]] = defaultdict(list)
    for text, case in pairs:
        alike[text].append(case)
    if alike:
        yield f"{title}:"
    for text, found in sorted(alike.items(), key=lambda item: -len(item[1])):
        yield f"{len(found):5} {text}  {min(found, key=len)}"


if __name__ == "__main__":
    sys.exit(main())
