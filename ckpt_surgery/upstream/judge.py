"""Whether a series is ready: every reason against it, from the evidence alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ckpt_surgery.upstream.results import Evidence, Row, SeriesStatus
from ckpt_surgery.upstream.series import Draft


def judged(evidence: Evidence, made: Draft, *, applies: bool) -> Evidence:
    """The evidence with its status and the reasons, the gravest first.

    "not ready": something failed. "unchecked": nothing failed, but something could not be run. What is neither is a
    caution, and leaves a series ready.
    """
    failed, unchecked = [*_failed(evidence, applies)], [*_unchecked(evidence)]
    status: SeriesStatus = "not ready" if failed else "unchecked" if unchecked else "ready"
    return replace(evidence, status=status, reasons=(*failed, *unchecked, *_cautions(evidence, made)))


def _failed(evidence: Evidence, applies: bool) -> Iterator[str]:
    if not applies:
        yield "git am of the patches on the base does not give the tree of the branch"
    for row in evidence.rows:
        if row.verdict == "worse":
            yield f"{row.model} ({row.mode}) is worse than before: {_new(row)}"
    for commit in evidence.commits:
        if not commit.imported.ok:
            yield f"what the commit {commit.subject!r} changes cannot be imported"
        yield from (f"{ran.command} failed with exit code {ran.code}" for ran in commit.fixes if not ran.ok)
    yield from (f"upstream's checker {one.name} fails" for one in evidence.checks if one.status == "failed")
    for test in evidence.regressions:
        if test.kind == "none" and (test.before or test.after):
            yield f"{test.family} has no regression test: {test.reason}"


def _unchecked(evidence: Evidence) -> Iterator[str]:
    yield from (f"{one.name}: not run ({one.reason})" for one in evidence.checks if one.status == "not run")
    for test in evidence.regressions:
        if test.kind == "none" and not (test.before or test.after):
            yield f"{test.family} has no regression test: {test.reason}"
    yield from (f"{row.model} ({row.mode}) was not measured: {row.problem}" for row in evidence.rows if row.problem)


def _cautions(evidence: Evidence, made: Draft) -> Iterator[str]:
    yield from (
        f"{one.name} fails, on the base as well" for one in evidence.checks if one.status == "failed before too"
    )
    for family in made.unreproduced:
        yield f"{family}: verify shows no difference between before and after; it is in only because you asked for it"
    for row in evidence.rows:
        if row.after and row.verdict != "worse":
            yield f"{row.model} ({row.mode}) still has a fault at the level {', '.join(row.after)}"


def _new(row: Row) -> str:
    return ", ".join(sorted(set(row.after) - set(row.before)))
