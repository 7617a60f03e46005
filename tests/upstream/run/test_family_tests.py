"""Failures of upstream's tests of a family, compared with the base."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ckpt_surgery.upstream.evidence.results import CheckStatus, CommandRun
from ckpt_surgery.upstream.run.pytest_run import family_tests
from tests.upstream.regression_toys import ELM, PLAIN, Answers, Scripted, Trees, make


@pytest.fixture
def trees(tmp_path: Path) -> Trees:
    return make(tmp_path, PLAIN)


def plain(tree: Path, base: Answers, series: Answers) -> Answers:
    return base if tree.name == "base" else series


@pytest.mark.parametrize(
    ("base", "series", "status"),
    [
        ({}, {"T::a": "passed", "T::b": "skipped"}, "ok"),
        ({"T::b": "passed"}, {"T::a": "passed", "T::b": "failed"}, "failed"),
        ({"T::b": "failed"}, {"T::a": "passed", "T::b": "failed"}, "failed before too"),
        ({"T::b": "failed", "T::c": "passed"}, {"T::b": "failed", "T::c": "failed"}, "failed"),
        ({"T::b": "skipped"}, {"T::a": "passed", "T::b": "failed"}, "failed"),
        ({"T::b": "error"}, {"T::a": "passed", "T::b": "error"}, "failed before too"),
        ({}, {"T::a": "skipped"}, "not run"),
        ({}, {"T::a": "error"}, "not run"),
        ({}, {}, "not run"),
    ],
)
def test_failures_of_a_family_are_compared_with_the_base(
    trees: Trees, base: Answers, series: Answers, status: str
) -> None:
    python = Scripted(Path("python"), lambda tree: plain(tree, base, series))
    result = family_tests("elm", trees.base, trees.series, python)
    assert (result.name, result.status) == ("tests/models/elm", status)
    bad = [name for name, outcome in series.items() if outcome in ("failed", "error")]
    ran_before = status.startswith("failed")
    assert (result.before is not None) == ran_before
    assert bool(result.reason) == (status != CheckStatus.OK)
    assert python.shown[0] == "series: python -m pytest tests/models/elm"
    assert python.shown[1:] == (
        ["base: python -m pytest " + " ".join(f"{ELM}::{n}" for n in bad)] if ran_before else []
    )
    assert result.ran is not None


def test_a_test_that_shows_the_repair_may_not_fail(trees: Trees) -> None:
    both: Answers = {"T::shown": "failed", "T::other": "failed"}
    python = Scripted(Path("python"), lambda _: both)
    result = family_tests("elm", trees.base, trees.series, python, proving=[f"{ELM}::T::shown"])
    assert (result.status, result.reason) == ("failed", f"on the series alone: {ELM}::T::shown")


def test_a_run_that_ends_early_with_nothing_but_green_is_not_ok(trees: Trees, monkeypatch: pytest.MonkeyPatch) -> None:
    python = Scripted(Path("python"), lambda _: {"T::a": "passed"})
    whole = Scripted.run

    def early(self: Scripted, *arguments: Any, **options: Any) -> CommandRun:
        return replace(whole(self, *arguments, **options), code=2)

    monkeypatch.setattr(Scripted, "run", early)
    result = family_tests("elm", trees.base, trees.series, python)
    assert (result.status, result.reason) == ("not run", "pytest ended early, with exit code 2")


def test_a_new_failure_is_named_among_old_ones(trees: Trees) -> None:
    series: Answers = {"T::new": "failed", **{f"T::old{number}": "failed" for number in range(4)}}
    python = Scripted(Path("python"), lambda tree: plain(tree, {**series, "T::new": "passed"}, series))
    assert family_tests("elm", trees.base, trees.series, python).reason == f"on the series alone: {ELM}::T::new"
    python = Scripted(Path("python"), lambda _: series)
    reason = family_tests("elm", trees.base, trees.series, python).reason
    assert reason.startswith(f"on the base as well: {ELM}::T::new, ")
    assert reason.endswith(" and 2 more")


def test_a_family_without_tests_is_not_run(trees: Trees) -> None:
    result = family_tests("oak", trees.base, trees.series, Scripted(Path("python")))
    assert (result.status, result.ran, result.reason) == ("not run", None, "the checkout has no tests/models/oak")
