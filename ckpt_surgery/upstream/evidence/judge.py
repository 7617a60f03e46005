"""Judge whether a series is ready: list every reason against it, from the evidence alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from ckpt_surgery.measure.results import Mode
from ckpt_surgery.text import listed
from ckpt_surgery.upstream.evidence.results import (
    CheckStatus,
    Evidence,
    ModelRow,
    Reason,
    ReasonCode,
    RegressionTest,
    RowVerdict,
    SeriesStatus,
)

_STATISTICS = (
    "gradients are equal; the running statistics of batch normalisation are not, because the recompute updates them "
    "a second time"
)


def judged(
    evidence: Evidence,
    unreproduced: Collection[str],
    *,
    applies: bool,
    lost: Sequence[str] = (),
    drifted: Sequence[str] = (),
) -> Evidence:
    """Return the evidence with its status and the reasons for it, most serious first.

    A failure makes a series not ready; a check that could not be run leaves it unchecked. Anything else is a known
    limit, with which it is still ready.

    Args:
        unreproduced: families of the series in which no fault was shown, so that no test can fail without the repair.
        applies: whether `git am` of the patches gives the tree of the branch.
        lost: families whose repair a later commit reverted.
        drifted: files that upstream's fixers change on the base already.
    """
    failed, unchecked = [*_failed(evidence, unreproduced, applies)], [*_unchecked(evidence)]
    if lost:
        text = f"{listed(lost)}: what its commit repaired is not repaired on the finished series"
        failed.insert(0, Reason(ReasonCode.REPAIR_LOST, text))
    if drifted:
        why = "upstream's fixers change it on the base already, so some of its changes may not be ours, or be missing"
        unchecked.append(Reason(ReasonCode.FIXERS_CHANGE_BASE, f"{listed(drifted)}: {why}"))
    status = SeriesStatus.NOT_READY if failed else SeriesStatus.UNCHECKED if unchecked else SeriesStatus.READY
    return replace(evidence, status=status, reasons=(*failed, *unchecked, *_known_limits(evidence, unreproduced)))


def _failed(evidence: Evidence, unreproduced: Collection[str], applies: bool) -> Iterator[Reason]:
    if not applies:
        text = "git am of the patches on the base does not give the tree of the branch"
        yield Reason(ReasonCode.PATCHES_DIFFER, text)
    worse = [row for row in evidence.rows if row.verdict is RowVerdict.WORSE]
    clauses = ((row, f"failing after the repair and not before: {listed(row.failing)}") for row in worse)
    yield from _by_clause(ReasonCode.NEW_FAULT, clauses)
    for commit in evidence.commits:
        if commit.imported and not commit.imported.ok:
            text = f"a module that the commit {commit.subject!r} changes cannot be imported"
            yield Reason(ReasonCode.IMPORT_FAILED, text)
    fixes = [ran for commit in evidence.commits for ran in commit.fixes if not ran.ok]
    for command, code in dict.fromkeys((ran.command, ran.code) for ran in fixes):
        yield Reason(ReasonCode.FIXER_FAILED, f"{command} failed with exit code {code}")
    for names in evidence.checkers(CheckStatus.FAILED).values():
        checkers = "checker" if len(names) == 1 else "checkers"
        yield Reason(ReasonCode.CHECKER_FAILED, f"upstream's {checkers} {_fail(names)}")
    yield from _untested(test for test in evidence.regressions if test.tried and test.family not in unreproduced)


def _unchecked(evidence: Evidence) -> Iterator[Reason]:
    measured = {row.family for row in evidence.rows if not row.problem}
    unmeasured = [family for family in evidence.families if family not in measured]
    if unmeasured:
        yield Reason(ReasonCode.NOT_MEASURED, f"{listed(unmeasured)}: no class of it was measured")
    for names in evidence.checkers(CheckStatus.FAILED_DIFFERENTLY).values():
        text = f"{_fail(names)}, and on the base too with another output: compare the two"
        yield Reason(ReasonCode.CHECKER_FAILED_DIFFERENTLY, text)
    for reason, names in evidence.checkers(CheckStatus.NOT_RUN).items():
        yield Reason(ReasonCode.CHECKER_NOT_RUN, f"{listed(names)}: not run ({reason})")
    yield from _untested(test for test in evidence.regressions if not test.tried)
    clauses = ((row, f"not measured: {row.problem}") for row in evidence.rows if row.problem)
    yield from _by_clause(ReasonCode.NOT_MEASURED, clauses)


def _known_limits(evidence: Evidence, unreproduced: Collection[str]) -> Iterator[Reason]:
    for names in evidence.checkers(CheckStatus.FAILED_BEFORE).values():
        yield Reason(ReasonCode.CHECKER_FAILED_BEFORE, f"{_fail(names)}, on the base too")
    if unreproduced:
        why = "it is included because it was asked for, or because its repair is part of another family's"
        text = f"{listed([*unreproduced])}: verify shows no fault that the repair removes; {why}"
        yield Reason(ReasonCode.NOT_REPRODUCED, text)
    yield from _untested(test for test in evidence.regressions if test.tried and test.family in unreproduced)
    measured = [row for row in evidence.rows if row.after and not row.problem and row.verdict is not RowVerdict.WORSE]
    yield from _by_clause(
        ReasonCode.STATISTICS_DIFFER, ((row, _STATISTICS) for row in measured if row.statistics_only)
    )
    verdicts = [row for row in measured if not row.statistics_only]
    new = [row for row in verdicts if set(row.after) - set(row.before)]
    still = ((row, f"still failing: {listed(row.failing)}") for row in verdicts if row not in new)
    yield from _by_clause(ReasonCode.FAULT_LEFT, still)
    yield from _by_clause(ReasonCode.FAULT_LEFT, ((row, f"failing now: {listed(row.failing)}") for row in new))


def _fail(names: Sequence[str]) -> str:
    return f"{listed(names)} {'fails' if len(names) == 1 else 'fail'}"


def _untested(tests: Iterable[RegressionTest]) -> Iterator[Reason]:
    families: dict[str, list[str]] = {}
    for test in tests:
        if not test.exists:
            families.setdefault(test.reason, []).append(test.family)
    for reason, names in families.items():
        yield Reason(ReasonCode.NO_REGRESSION_TEST, f"no regression test of {listed(names)}: {reason}")


def _by_clause(code: ReasonCode, clauses: Iterable[tuple[ModelRow, str]]) -> Iterator[Reason]:
    """Yield one reason for all classes to which a clause applies in the same modes."""
    modes: dict[tuple[str, str], tuple[Mode, ...]] = {}
    for row, clause in clauses:
        modes[clause, row.model] = (*modes.get((clause, row.model), ()), row.mode)
    models: dict[tuple[str, tuple[Mode, ...]], list[str]] = {}
    for (clause, model), held in modes.items():
        models.setdefault((clause, held), []).append(model)
    for (clause, held), names in models.items():
        yield Reason(code, f"{listed(names)} ({listed(held)}): {clause}")
