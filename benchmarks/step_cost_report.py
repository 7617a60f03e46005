"""What the benchmark of steps makes of its measurements: figures with targets, a table and json."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from rich.table import Table

from benchmarks.figures import Figure, Target, document
from benchmarks.step_cost_runs import ALL_CHECKED, IN_TURN, NONE, OF_LAYERS, OURS, THEIRS, Cost, Measured, Way
from ckpt_surgery.measure.versions import installed_versions

DEAREST_CALL = Target(1.25)
"""What a call of a block that does next to nothing may take of the host's time, in units of transformers' own."""
DEAREST_CHECK = Target(1.05)
"""What a step in which every block checks itself may take, in units of one in which none does."""
DEAREST_TURN = Target(0.005)
"""What one block that checks itself may add to a step, as a share of one in which none does."""
NOT_MORE = Target(0)
LESS = Target(-1)
"""Bytes and FLOPs are whole numbers."""


def figures(families: Sequence[Measured], calls: Measured, checks: Measured) -> list[Figure]:
    """The price of a call and of a check, and for every family bytes, FLOPs and faults."""
    return [
        *_price_of_call(calls),
        *_price_of_check(checks),
        *(figure for family in families for figure in _targeted(family)),
    ]


def _price_of_call(calls: Measured) -> Iterator[Figure]:
    for way in OF_LAYERS:
        microseconds = tuple(1e6 * each / calls.calls for each in calls.costs[way].seconds)
        yield Figure(f"{calls.family}: {way}", microseconds, "us a call")
    ratios = _ratios(calls, OURS, THEIRS)
    yield Figure(f"{calls.family}: {OURS} over {THEIRS}", ratios, "x", DEAREST_CALL)


def _price_of_check(checks: Measured) -> Iterator[Figure]:
    """One block's share is too small to be timed: it is taken from the steps in which every block checks itself."""
    every = _ratios(checks, ALL_CHECKED, OURS)
    yield Figure(f"{checks.family}: a step, every block checked", every, "x", DEAREST_CHECK)
    yield Figure(f"{checks.family}: a step, one block checked", _ratios(checks, IN_TURN, OURS), "x")
    share = ((statistics.median(every) - 1) / checks.calls,)
    yield Figure(f"{checks.family}: what one checked block adds", share, "of a step", DEAREST_TURN)


def _ratios(measured: Measured, over: Way, under: Way) -> tuple[float, ...]:
    pairs = zip(measured.costs[over].seconds, measured.costs[under].seconds, strict=True)
    return tuple(one / other for one, other in pairs)


def _targeted(measured: Measured) -> Iterator[Figure]:
    ours, theirs = measured.costs[OURS], measured.costs[THEIRS]
    right = [cost for way, cost in measured.costs.items() if way not in (NONE, OURS) and not cost.faults]
    name = measured.family
    yield Figure(f"{name}: faults", (len(ours.faults),), "", NOT_MORE)
    if right:
        kept = ours.kept_bytes - min(cost.kept_bytes for cost in right)
        work = ours.backward_flops - min(cost.backward_flops for cost in right)
        yield Figure(f"{name}: kept over the best of the others", (kept,), "bytes", NOT_MORE)
        yield Figure(f"{name}: work over the best of the others", (work,), "FLOPs", NOT_MORE)
    if measured.nested and theirs.faults:  # where they are right, nothing is computed three times
        less = ours.backward_flops - theirs.backward_flops
        yield Figure(f"{name}: work over transformers' own, nested", (less,), "FLOPs", LESS)


def overhead(measured: Measured) -> tuple[float, ...]:
    """What a call of a block costs with `wrap_blocks` over transformers' own, in microseconds, round by round.

    Nothing where transformers' own does not do the same work: it is not right, or its blocks are nested.
    """
    theirs, ours = measured.costs[THEIRS], measured.costs[OURS]
    if theirs.faults or theirs.backward_flops != ours.backward_flops:
        return ()
    pairs = zip(ours.seconds, theirs.seconds, strict=True)
    return tuple(1e6 * (one - other) / measured.calls for one, other in pairs)


def cost_table(families: Sequence[Measured], rounds: int) -> Table:
    """What each way costs in each family, next to no checkpointing."""
    versions = installed_versions()
    title = (
        f"one step on transformers {versions['transformers']}, torch {versions['torch']}; times: medians of {rounds}"
    )
    grid = Table(title=title, title_style="bold")
    grid.add_column("family", no_wrap=True)
    grid.add_column("way", no_wrap=True)
    for name in ("kept bytes", "of none's", "backward / forward FLOPs", "step time, of none's", "us a call over own"):
        grid.add_column(name, justify="right")
    grid.add_column("right", no_wrap=True)
    for measured in families:
        for way, cost in measured.costs.items():
            grid.add_row("" if grid.rows and way != NONE else measured.family, *_cells(measured, way, cost))
        grid.add_section()
    return grid


def _cells(measured: Measured, way: Way, cost: Cost) -> tuple[str, ...]:
    none = measured.costs[NONE]
    price = overhead(measured) if way == OURS else ()
    return (
        str(way),
        f"{cost.kept_bytes:,}",
        f"{cost.kept_bytes / none.kept_bytes:.3f}",
        f"{cost.backward_flops / cost.forward_flops:.3f}" if cost.ended else "",
        f"{statistics.median(cost.seconds) / statistics.median(none.seconds):.2f}" if cost.seconds else "",
        f"{statistics.median(price):+.0f}" if price else "",
        "" if way == NONE else "no" if cost.faults else "yes",
    )


def as_json(families: Sequence[Measured], measured: Sequence[Figure]) -> str:
    """The figures, what they are made of, and the machine."""
    return document(measured, families=[_family_json(family) for family in families])


def _family_json(measured: Measured) -> dict[str, object]:
    price = overhead(measured) if measured.costs.keys() >= set(OF_LAYERS) else ()
    return {
        "family": measured.family,
        "block_calls": measured.calls,
        "nested": measured.nested,
        "overhead_microseconds": statistics.median(price) if price else None,
        "ways": {
            str(way): {
                "kept_bytes": cost.kept_bytes,
                "forward_flops": cost.forward_flops,
                "backward_flops": cost.backward_flops,
                "step_seconds": statistics.median(cost.seconds) if cost.seconds else None,
                "faults": cost.faults,
            }
            for way, cost in measured.costs.items()
        },
    }
