"""A series is ready if nothing is against it; every reason is given, the most serious first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ckpt_surgery.measure.results import LEVELS
from ckpt_surgery.upstream.evidence.judge import judged
from ckpt_surgery.upstream.evidence.results import (
    CheckerResult,
    CheckStatus,
    CommandRun,
    Evidence,
    ReasonCode,
    RegressionKind,
    RegressionTest,
    SeriesStatus,
)
from tests.upstream.evidence import evidence_cases as cases

BROKEN = CommandRun("python -c 'import transformers'", 1, "no")
WENT = CommandRun("python -m pytest x", 0, "1 passed")
IN_ANYWAY = (
    "zamba2: verify shows no fault that the repair removes; it is included because it was asked for, or because its "
    "repair is part of another family's"
)


def texts(evidence: Evidence) -> tuple[str, ...]:
    return tuple(reason.text for reason in evidence.reasons)


def changed(**fields: Any) -> Evidence:
    return replace(cases.ready(), **fields)


def first_row(**fields: Any) -> Evidence:
    first, *others = cases.ready().rows
    return changed(rows=(replace(first, **fields), *others))


def first_commit(**fields: Any) -> Evidence:
    first, *others = cases.ready().commits
    return changed(commits=(replace(first, **fields), *others))


def no_test(**fields: Any) -> Evidence:
    clvp, _ = cases.ready().regressions
    test = RegressionTest("zamba2", RegressionKind.NONE, reason="it passes on the base")
    return changed(regressions=(clvp, replace(test, **fields)))


def judge(made: Evidence, *shown_no_fault: str, applies: bool = True, **options: Any) -> Evidence:
    return judged(made, shown_no_fault, applies=applies, **options)


def checked(name: str, status: CheckStatus, *runs: Any, **options: Any) -> Evidence:
    return changed(checks=(CheckerResult(name, status, *runs, **options),))


def ways() -> dict[str, tuple[Evidence, SeriesStatus, ReasonCode]]:
    """Return what may be wrong with a series, the status that it gives, and the code of the reason."""
    not_ready, unchecked, ready = SeriesStatus.NOT_READY, SeriesStatus.UNCHECKED, SeriesStatus.READY
    failed_fix = first_commit(fixes=(CommandRun("make fix-repo", 2), WENT))
    otherwise = checked("repo", CheckStatus.FAILED_DIFFERENTLY, BROKEN, WENT)
    return {
        "a new fault": (judge(first_row(after=("values",))), not_ready, ReasonCode.NEW_FAULT),
        "a new fault where all was well": (
            judge(first_row(before=(), after=("cost",))),
            not_ready,
            ReasonCode.NEW_FAULT,
        ),
        "patches that do not give the branch": (
            judge(cases.ready(), applies=False),
            not_ready,
            ReasonCode.PATCHES_DIFFER,
        ),
        "a repair that a later commit took back": (
            judge(cases.ready(), lost=["clvp"]),
            not_ready,
            ReasonCode.REPAIR_LOST,
        ),
        "a failed import": (judge(first_commit(imported=BROKEN)), not_ready, ReasonCode.IMPORT_FAILED),
        "a failed converter": (judge(failed_fix), not_ready, ReasonCode.FIXER_FAILED),
        "a failed checker": (
            judge(checked("copies", CheckStatus.FAILED, BROKEN)),
            not_ready,
            ReasonCode.CHECKER_FAILED,
        ),
        "a test that shows nothing": (judge(no_test(before=WENT)), not_ready, ReasonCode.NO_REGRESSION_TEST),
        "a test that fails with the repair too": (
            judge(no_test(after=BROKEN)),
            not_ready,
            ReasonCode.NO_REGRESSION_TEST,
        ),
        "no mode in which a test can pass": (
            judge(no_test(kind=RegressionKind.IMPOSSIBLE)),
            not_ready,
            ReasonCode.NO_REGRESSION_TEST,
        ),
        "a checker that was not run": (
            judge(checked("types", CheckStatus.NOT_RUN, reason="ty is not there")),
            unchecked,
            ReasonCode.CHECKER_NOT_RUN,
        ),
        "a checker that fails with other words": (judge(otherwise), unchecked, ReasonCode.CHECKER_FAILED_DIFFERENTLY),
        "a test that could not be tried": (judge(no_test()), unchecked, ReasonCode.NO_REGRESSION_TEST),
        "a class that was not measured": (
            judge(first_row(before=(), after=(), problem="it took too long")),
            unchecked,
            ReasonCode.NOT_MEASURED,
        ),
        "nothing was measured": (judge(changed(rows=())), unchecked, ReasonCode.NOT_MEASURED),
        "fixers change a file anyway": (
            judge(cases.ready(), drifted=["a.py"]),
            unchecked,
            ReasonCode.FIXERS_CHANGE_BASE,
        ),
        "a checker that fails on the base too": (
            judge(checked("repo", CheckStatus.FAILED_BEFORE, BROKEN, BROKEN)),
            ready,
            ReasonCode.CHECKER_FAILED_BEFORE,
        ),
        "running statistics that move twice": (
            judge(first_row(after=("state",), statistics_only=True)),
            ready,
            ReasonCode.STATISTICS_DIFFER,
        ),
        "a fault that is still there": (judge(first_row(after=("cost",))), ready, ReasonCode.FAULT_LEFT),
        "a family that showed no fault": (judge(cases.ready(), "zamba2"), ready, ReasonCode.NOT_REPRODUCED),
    }


@pytest.mark.parametrize("way", ways())
def test_what_is_wrong_decides_the_status_and_is_the_one_reason(way: str) -> None:
    judgement, status, code = ways()[way]
    assert (judgement.status, {reason.code for reason in judgement.reasons}) == (status, {code})


def test_every_code_is_given_by_some_series() -> None:
    assert {code for _, _, code in ways().values()} == set(ReasonCode)


def test_a_test_that_shows_nothing_is_a_caution_if_nothing_can_be_shown() -> None:
    judgement = judged(no_test(before=WENT), ("zamba2",), applies=True)
    assert (judgement.status, texts(judgement)) == (
        SeriesStatus.READY,
        (IN_ANYWAY, "no regression test of zamba2: it passes on the base"),
    )
    assert judged(no_test(before=WENT), ("clvp",), applies=True).status == SeriesStatus.NOT_READY


def test_failures_come_first_then_what_was_not_run_then_cautions() -> None:
    ready = cases.ready()
    clvp, zamba2 = ready.commits
    encoder, reentrant, unmeasured, left = ready.rows
    made = changed(
        commits=(replace(clvp, imported=BROKEN, fixes=(CommandRun("make fix-repo", 2),)), zamba2),
        rows=(
            replace(encoder, after=("set",)),
            reentrant,
            replace(unmeasured, problem="it took too long"),
            replace(left, after=("cost",)),
        ),
        checks=(
            CheckerResult("repo", CheckStatus.FAILED_BEFORE, BROKEN, BROKEN),
            CheckerResult("types", CheckStatus.NOT_RUN, reason="ty is not there"),
            CheckerResult("copies", CheckStatus.FAILED, BROKEN),
        ),
        regressions=(
            RegressionTest("clvp", RegressionKind.NONE, reason="no torch"),
            RegressionTest("zamba2", RegressionKind.NONE, before=WENT, reason="it passes on the base"),
        ),
    )
    judgement = judged(made, ("mllama",), applies=False)
    assert judgement.status == SeriesStatus.NOT_READY
    assert [reason.partition(" (")[0] for reason in texts(judgement)] == [
        "git am of the patches on the base does not give the tree of the branch",
        "ClvpEncoder",
        "a module that the commit 'clvp: checkpoint | once' changes cannot be imported",
        "make fix-repo failed with exit code 2",
        "upstream's checker copies fails",
        "no regression test of zamba2: it passes on the base",
        "types: not run",
        "no regression test of clvp: no torch",
        "Zamba2ForCausalLM",
        "repo fails, on the base too",
        IN_ANYWAY.replace("zamba2", "mllama"),
        "Zamba2ForCausalLM",
    ]


def test_classes_and_families_of_which_the_same_is_said_share_a_sentence() -> None:
    rows = [
        *cases.rows("clvp", "ClvpEncoder"),
        *cases.rows("clvp", "ClvpDecoder"),
        *cases.rows("zamba2", "Zamba2Model"),
    ]
    tests = tuple(RegressionTest(family, RegressionKind.NONE, reason="no torch") for family in ("clvp", "zamba2"))
    made = changed(rows=tuple(replace(row, after=("recompute",)) for row in rows), regressions=tests)
    assert texts(judged(made, (), applies=True)) == (
        "no regression test of clvp and zamba2: no torch",
        "ClvpEncoder, ClvpDecoder and Zamba2Model (non_reentrant and reentrant): still failing: recompute",
    )


def test_the_same_reason_is_listed_once() -> None:
    ruff = CheckerResult("copies", CheckStatus.NOT_RUN, reason="the interpreter has no ruff")
    fixes = (CommandRun("make fix-repo", 2, "one"), CommandRun("make fix-repo", 2, "two"))
    clvp, zamba2 = cases.ready().commits
    made = changed(
        commits=(replace(clvp, fixes=fixes), replace(zamba2, fixes=fixes)),
        checks=(
            ruff,
            CheckerResult("inits", CheckStatus.FAILED, BROKEN),
            CheckerResult("repo", CheckStatus.FAILED, BROKEN),
            replace(ruff, name="ruff_check"),
            CheckerResult("types", CheckStatus.NOT_RUN, reason="ty is not there"),
            CheckerResult("dummies", CheckStatus.FAILED_DIFFERENTLY, BROKEN, WENT),
            CheckerResult("doc_toc", CheckStatus.FAILED_DIFFERENTLY, BROKEN, WENT),
            CheckerResult("add_dates", CheckStatus.FAILED_BEFORE, BROKEN, BROKEN),
            CheckerResult("metadata", CheckStatus.FAILED_BEFORE, BROKEN, BROKEN),
        ),
    )
    assert texts(judged(made, (), applies=True)) == (
        "make fix-repo failed with exit code 2",
        "upstream's checkers inits and repo fail",
        "dummies and doc_toc fail, and on the base too with another output: compare the two",
        "copies and ruff_check: not run (the interpreter has no ruff)",
        "types: not run (ty is not there)",
        "add_dates and metadata fail, on the base too",
    )


def test_levels_are_in_their_order_and_a_worse_row_names_new_ones_only() -> None:
    left = judged(first_row(before=LEVELS, after=("cost", "recompute")), (), applies=True)
    assert texts(left) == ("ClvpEncoder (non_reentrant): still failing: recompute and cost",)
    worse = judged(first_row(before=("recompute",), after=("values", "set", "recompute")), (), applies=True)
    assert texts(worse) == ("ClvpEncoder (non_reentrant): failing after the repair and not before: set and values",)
