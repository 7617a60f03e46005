"""Whether a series is ready: every reason against it, from the evidence alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from ckpt_surgery.measure.results import LEVELS
from ckpt_surgery.text import listed
from ckpt_surgery.upstream.evidence.results import Evidence, Regression, Row, SeriesStatus


def judged(
    evidence: Evidence,
    unreproduced: Collection[str],
    *,
    applies: bool,
    lost: Sequence[str] = (),
    drifted: Sequence[str] = (),
) -> Evidence:
    """The evidence with its status and the reasons, the gravest first.

    `unreproduced` are families in the series of which no fault was shown: a test of theirs can fail nowhere.
    `applies` is whether `git am` of the patches gives the tree of the branch. `lost` are families whose repair a
    later commit took back, `drifted` files that upstream's fixers change on the base already.

    "not ready": something failed. "unchecked": nothing failed, but something could not be run. What is neither is a
    caution, and leaves a series ready.
    """
    failed, unchecked = [*_failed(evidence, unreproduced, applies)], [*_unchecked(evidence)]
    if lost:
        failed.insert(0, f"{listed(lost)}: what its commit repaired is not repaired on the finished series")
    if drifted:
        why = "upstream's fixers change it on the base already, so that its changes are not all ours, or not all there"
        unchecked.append(f"{listed(drifted)}: {why}")
    status: SeriesStatus = "not ready" if failed else "unchecked" if unchecked else "ready"
    return replace(evidence, status=status, reasons=(*failed, *unchecked, *_cautions(evidence, unreproduced)))


def _failed(evidence: Evidence, unreproduced: Collection[str], applies: bool) -> Iterator[str]:
    if not applies:
        yield "git am of the patches on the base does not give the tree of the branch"
    worse = [row for row in evidence.rows if row.verdict == "worse"]
    yield from _grouped((f"failing after the repair and not before: {_levels(row)}", row) for row in worse)
    for commit in evidence.commits:
        if commit.imported and not commit.imported.ok:
            yield f"what the commit {commit.subject!r} changes cannot be imported"
        yield from (f"{ran.command} failed with exit code {ran.code}" for ran in commit.fixes if not ran.ok)
    yield from (f"upstream's checker {one.name} fails" for one in evidence.checks if one.status == "failed")
    tests = (test for test in evidence.regressions if test.family not in unreproduced)
    yield from _untested(test for test in tests if test.before or test.after)


def _unchecked(evidence: Evidence) -> Iterator[str]:
    measured = {row.family for row in evidence.rows if not row.problem}
    bare = [family for family in evidence.families if family not in measured]
    if bare:
        yield f"{listed(bare)}: no class of it was measured"
    for one in evidence.checks:
        if one.status == "failed otherwise before":
            yield f"{one.name} fails, and fails on the base as well, with other words: compare the two"
    yield from (f"{one.name}: not run ({one.reason})" for one in evidence.checks if one.status == "not run")
    yield from _untested(test for test in evidence.regressions if not (test.before or test.after))
    yield from _grouped((f"not measured: {row.problem}", row) for row in evidence.rows if row.problem)


def _cautions(evidence: Evidence, unreproduced: Collection[str]) -> Iterator[str]:
    yield from (
        f"{one.name} fails, on the base as well" for one in evidence.checks if one.status == "failed before too"
    )
    if unreproduced:
        why = "in because it was asked for, or because its repair is part of another's"
        yield f"{listed([*unreproduced])}: verify shows no fault that the repair takes away; {why}"
    tests = (test for test in evidence.regressions if test.family in unreproduced)
    yield from _untested(test for test in tests if test.before or test.after)
    left = [row for row in evidence.rows if row.after and not row.problem and row.verdict != "worse"]
    yield from _grouped((f"still failing: {_levels(row)}", row) for row in left if set(row.after) <= set(row.before))
    yield from _grouped((f"failing now: {_levels(row)}", row) for row in left if set(row.after) - set(row.before))


def _untested(tests: Iterable[Regression]) -> Iterator[str]:
    families: dict[str, list[str]] = {}
    for test in tests:
        if test.kind == "none":
            families.setdefault(test.reason, []).append(test.family)
    yield from (f"no regression test of {listed(names)}: {reason}" for reason, names in families.items())


def _grouped(said: Iterable[tuple[str, Row]]) -> Iterator[str]:
    """One sentence for all classes of a family of which the same is said."""
    rows: dict[tuple[str, str], list[Row]] = {}
    for text, row in said:
        rows.setdefault((row.family, text), []).append(row)
    for (_, text), those in rows.items():
        models, modes = (
            tuple(dict.fromkeys(names)) for names in zip(*((r.model, r.mode) for r in those), strict=True)
        )
        yield f"{listed(models)} ({listed(modes)}): {text}"


def _levels(row: Row) -> str:
    """The levels that matter: the new ones where a repair brought some, all that fail where not."""
    levels = set(row.after) - set(row.before) if row.verdict == "worse" else set(row.after)
    return listed([level for level in LEVELS if level in levels])
