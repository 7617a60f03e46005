"""A series is ready if nothing is against it; every reason is given, the most serious first."""

from __future__ import annotations

from collections.abc import Callable
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


WAYS: dict[str, tuple[Callable[[], Evidence], SeriesStatus, ReasonCode]] = {
    "a new fault": (lambda: first_row(after=("values",)), SeriesStatus.NOT_READY, ReasonCode.NEW_FAULT),
    "a new fault where all was well": (
        lambda: first_row(before=(), after=("cost",)),
        SeriesStatus.NOT_READY,
        ReasonCode.NEW_FAULT,
    ),
    "a failed import": (lambda: first_commit(imported=BROKEN), SeriesStatus.NOT_READY, ReasonCode.IMPORT_FAILED),
    "a failed converter": (
        lambda: first_commit(fixes=(CommandRun("make fix-repo", 2), WENT)),
        SeriesStatus.NOT_READY,
        ReasonCode.FIXER_FAILED,
    ),
    "a failed checker": (
        lambda: changed(checks=(CheckerResult("copies", CheckStatus.FAILED, BROKEN),)),
        SeriesStatus.NOT_READY,
        ReasonCode.CHECKER_FAILED,
    ),
    "a test that shows nothing": (lambda: no_test(before=WENT), SeriesStatus.NOT_READY, ReasonCode.NO_REGRESSION_TEST),
    "a test that fails with the repair too": (
        lambda: no_test(after=BROKEN),
        SeriesStatus.NOT_READY,
        ReasonCode.NO_REGRESSION_TEST,
    ),
    "no mode in which a test can pass": (
        lambda: no_test(kind=RegressionKind.IMPOSSIBLE),
        SeriesStatus.NOT_READY,
        ReasonCode.NO_REGRESSION_TEST,
    ),
    "a checker that was not run": (
        lambda: changed(checks=(CheckerResult("types", CheckStatus.NOT_RUN, reason="ty is not there"),)),
        SeriesStatus.UNCHECKED,
        ReasonCode.CHECKER_NOT_RUN,
    ),
    "a test that could not be tried": (no_test, SeriesStatus.UNCHECKED, ReasonCode.NO_REGRESSION_TEST),
    "a class that was not measured": (
        lambda: first_row(before=(), after=(), problem="it took too long"),
        SeriesStatus.UNCHECKED,
        ReasonCode.NOT_MEASURED,
    ),
    "a checker that fails on the base too": (
        lambda: changed(checks=(CheckerResult("repo", CheckStatus.FAILED_BEFORE, BROKEN, BROKEN),)),
        SeriesStatus.READY,
        ReasonCode.CHECKER_FAILED_BEFORE,
    ),
    "running statistics that move twice": (
        lambda: first_row(after=("state",), statistics_only=True),
        SeriesStatus.READY,
        ReasonCode.STATISTICS_DIFFER,
    ),
    "a fault that is still there": (lambda: first_row(after=("cost",)), SeriesStatus.READY, ReasonCode.FAULT_LEFT),
}
"""What is wrong, the status that it gives, and the code of the reason; the sentences are in the snapshots."""


@pytest.mark.parametrize("way", WAYS)
def test_what_is_wrong_decides_the_status_and_is_the_one_reason(way: str) -> None:
    made, status, code = WAYS[way]
    judgement = judged(made(), (), applies=True)
    assert (judgement.status, [reason.code for reason in judgement.reasons]) == (status, [code])


def test_patches_that_do_not_give_the_branch_make_it_not_ready() -> None:
    judgement = judged(cases.ready(), (), applies=False)
    assert judgement.status == SeriesStatus.NOT_READY
    assert texts(judgement) == ("git am of the patches on the base does not give the tree of the branch",)


def test_a_family_of_which_no_fault_was_shown_is_a_caution() -> None:
    judgement = judged(cases.ready(), ("zamba2",), applies=True)
    assert (judgement.status, texts(judgement)) == ("ready", (IN_ANYWAY,))


def test_a_test_that_shows_nothing_is_a_caution_if_nothing_can_be_shown() -> None:
    judgement = judged(no_test(before=WENT), ("zamba2",), applies=True)
    assert (judgement.status, texts(judgement)) == (
        SeriesStatus.READY,
        (IN_ANYWAY, "no regression test of zamba2: it passes on the base"),
    )
    assert judged(no_test(before=WENT), ("clvp",), applies=True).status == SeriesStatus.NOT_READY


def test_a_test_that_could_not_be_tried_leaves_such_a_family_unchecked() -> None:
    assert judged(no_test(), ("zamba2",), applies=True).status == SeriesStatus.UNCHECKED


def test_a_repair_that_a_later_commit_took_back_is_not_ready() -> None:
    judgement = judged(cases.ready(), (), applies=True, lost=["clvp"])
    why = "clvp: what its commit repaired is not repaired on the finished series"
    assert (judgement.status, texts(judgement)) == ("not ready", (why,))


def test_a_file_that_fixers_change_anyway_leaves_a_series_unchecked() -> None:
    judgement = judged(cases.ready(), (), applies=True, drifted=["a.py", "b.py"])
    assert judgement.status == SeriesStatus.UNCHECKED
    assert texts(judgement)[0].startswith("a.py and b.py: upstream's fixers change it on the base already")


def test_a_family_of_which_nothing_was_measured_leaves_a_series_unchecked() -> None:
    judgement = judged(changed(rows=()), (), applies=True)
    assert judgement.status == SeriesStatus.UNCHECKED
    assert texts(judgement)[0].endswith("no class of it was measured")


def test_a_checker_that_fails_with_other_words_leaves_a_series_unchecked() -> None:
    check = CheckerResult("repo", CheckStatus.FAILED_DIFFERENTLY, BROKEN, WENT)
    judgement = judged(changed(checks=(check,)), (), applies=True)
    assert judgement.status == SeriesStatus.UNCHECKED
    assert texts(judgement) == ("repo fails, and on the base too with another output: compare the two",)


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


def test_every_code_is_given_by_some_series() -> None:
    series = [judged(made(), (), applies=True) for made, *_ in WAYS.values()]
    differently = CheckerResult("repo", CheckStatus.FAILED_DIFFERENTLY, BROKEN, WENT)
    series.append(judged(changed(checks=(differently,)), ("zamba2",), applies=False, lost=["clvp"], drifted=["a.py"]))
    assert {reason.code for evidence in series for reason in evidence.reasons} == set(ReasonCode)
