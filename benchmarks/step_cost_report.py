"""What the benchmark of steps makes of its measurements: figures with targets, a table and json."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from rich.table import Table

from benchmarks.figures import Figure, Target, document
from benchmarks.step_cost_runs import NONE, OF_LAYERS, Cost, Measured, Way
from ckpt_surgery.measure.results import MODES, Mode
from ckpt_surgery.measure.versions import installed_versions

DEAREST_CALL = Target(1.5)
"""What a call of a block that does next to nothing may take of the host's time, in units of transformers' own."""
DEAREST_CHECK = Target(1.05)
"""What a step that checks itself may take, in units of one that does not."""
NOT_MORE = Target(0)
LESS = Target(-1)
"""Bytes and FLOPs are whole numbers."""


def figures(families: Sequence[Measured], calls: Measured, checks: Measured) -> list[Figure]:
    """The price of a call and of a check, and for every family and mode bytes, FLOPs and faults."""
    return [
        *(figure for mode in MODES for figure in _price_of_call(calls, mode)),
        *(_price_of_check(checks, mode) for mode in MODES),
        *(figure for family in families for mode in MODES for figure in _targeted(family, mode)),
    ]


def _price_of_call(calls: Measured, mode: Mode) -> Iterator[Figure]:
    name = f"{calls.family}, {_words(mode)}"
    theirs, ours = (calls.costs[way].seconds for way in OF_LAYERS if way.mode == mode)
    for whose, seconds in (("transformers", theirs), ("wrap_blocks", ours)):
        yield Figure(f"{name}: {whose}", tuple(1e6 * each / calls.calls for each in seconds), "us a call")
    yield Figure(f"{name}: wrap_blocks over transformers", _ratios(ours, theirs), "x", DEAREST_CALL)


def _price_of_check(checks: Measured, mode: Mode) -> Figure:
    plain, checked = (checks.costs[Way("wrap_blocks", mode, checked)].seconds for checked in (False, True))
    name = f"{checks.family}, {_words(mode)}: a checked step over another"
    return Figure(name, _ratios(checked, plain), "x", DEAREST_CHECK)


def _ratios(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, ...]:
    return tuple(one / other for one, other in zip(ours, theirs, strict=True))


def _targeted(measured: Measured, mode: Mode) -> Iterator[Figure]:
    ours = measured.costs[Way("wrap_blocks", mode)]
    others = {way: cost for way, cost in measured.costs.items() if way.mode == mode and way.whose != "wrap_blocks"}
    theirs = others[Way("transformers", mode)]
    right = [cost for way, cost in others.items() if way != NONE and not cost.faults]
    name = f"{measured.family}, {_words(mode)}"
    yield Figure(f"{name}: faults", (len(ours.faults),), "", NOT_MORE)
    if right:
        kept = ours.kept_bytes - min(cost.kept_bytes for cost in right)
        work = ours.backward_flops - min(cost.backward_flops for cost in right)
        yield Figure(f"{name}: kept over the best of the others", (kept,), "bytes", NOT_MORE)
        yield Figure(f"{name}: work over the best of the others", (work,), "FLOPs", NOT_MORE)
    if measured.nested and theirs.faults:  # where they are right, nothing is computed three times
        less = ours.backward_flops - theirs.backward_flops
        yield Figure(f"{name}: work over transformers' own, nested", (less,), "FLOPs", LESS)


def overhead(measured: Measured, mode: Mode) -> tuple[float, ...]:
    """What a call of a block costs with `wrap_blocks` over transformers' own, in microseconds, round by round.

    Nothing where transformers' own does not do the same work: it is not right, or its blocks are nested.
    """
    theirs, ours = (measured.costs[way] for way in OF_LAYERS if way.mode == mode)
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
    price = overhead(measured, way.mode) if way.whose == "wrap_blocks" else ()
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
    return {
        "family": measured.family,
        "block_calls": measured.calls,
        "nested": measured.nested,
        "overhead_microseconds": {
            mode: statistics.median(price)
            for mode in MODES
            if measured.costs.keys() >= set(OF_LAYERS) and (price := overhead(measured, mode))
        },
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


def _words(mode: Mode) -> str:
    return mode.replace("_", "-")
