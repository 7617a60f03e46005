"""The test that shows a repair is red on the base and green on the series, and no other test counts.

The flow runs with answers in place of pytest; `test_regression_runs` has our own test with torch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ckpt_surgery.measure.results import Mode
from ckpt_surgery.upstream.evidence.results import RegressionKind, RegressionTest
from ckpt_surgery.upstream.run.regression import regression
from ckpt_surgery.upstream.run.regression_method import TEST
from tests.upstream.regression_toys import ELM, PLAIN, TEST_TEXT, Answers, Scripted, Trees, make

SWITCH = "test_gradient_checkpointing_enable_disable"
UPSTREAM = "ElmModelTest::test_training_gradient_checkpointing"
OVERRIDE = TEST_TEXT[TEST_TEXT.index("    # It has no loss.") : TEST_TEXT.index("    def test_config")]
BARE = TEST_TEXT.replace(OVERRIDE, "").replace("import pytest\n\n", "")
BOTH: tuple[Mode, ...] = ("non_reentrant", "reentrant")


@pytest.fixture
def trees(tmp_path: Path) -> Trees:
    return make(tmp_path, PLAIN)


def run(
    trees: Trees,
    answer: Callable[[Path], Answers | int],
    *,
    blocks: tuple[str, ...] = ("ElmLayer",),
    modes: tuple[Mode, ...] = BOTH,
) -> tuple[RegressionTest, list[str]]:
    """Run the regression; return it and the commands that were run."""
    python = Scripted(Path("python"), answer)
    return regression("elm", trees.base, trees.series, python, blocks=blocks, modes=modes), python.shown


def plain(tree: Path, base: Answers, series: Answers) -> Answers:
    return base if tree.name == "base" else series


def excused(tree: Path) -> Answers:
    """Make the generic test red on the base and green on the series, and excuse the family nowhere."""
    if "xfail" in (tree / ELM).read_text():
        return {f"ElmModelTest::{SWITCH}": "xfailed"}
    return {f"ElmModelTest::{SWITCH}": "failed" if tree.name == "base" else "passed"}


def ours(tree: Path) -> Answers:
    """Make our own test red on the base and green on the series, in each class that has it."""
    names = [part.split("(")[0] for part in (tree / ELM).read_text().split("\nclass ") if TEST in part]
    return {f"{name}::{TEST}": "failed" if tree.name == "base" else "passed" for name in names}


# -- upstream's tests as they stand


def test_a_test_of_upstream_that_goes_from_red_to_green_covers_the_repair(trees: Trees) -> None:
    before = trees.tests(trees.base)
    regression_test, shown = run(trees, lambda tree: plain(tree, {UPSTREAM: "failed"}, {UPSTREAM: "passed"}))
    assert (regression_test.kind, regression_test.paths, regression_test.tests) == (
        "covered",
        (ELM,),
        (f"{ELM}::{UPSTREAM}",),
    )
    assert regression_test.before is not None
    assert regression_test.after is not None
    assert (regression_test.before.code, regression_test.after.code) == (1, 0)
    sweep, test = f"python -m pytest {ELM} -k checkpointing", f"python -m pytest {ELM}::{UPSTREAM}"
    assert shown == [f"base: {sweep}", f"series: {sweep}", f"base: {test}", f"series: {test}"]
    assert trees.tests(trees.base) == trees.tests(trees.series) == before


@pytest.mark.parametrize(
    ("base", "series"),
    [
        ("passed", "passed"),
        ("failed", "failed"),
        ("failed", "skipped"),
        ("skipped", "passed"),
        ("error", "passed"),
    ],
)
def test_anything_but_red_and_then_green_is_not_taken(trees: Trees, base: str, series: str) -> None:
    before = trees.tests(trees.base)
    other: Answers = {"ElmOtherTest::test_checkpointing": "passed"}
    regression_test, _ = run(trees, lambda tree: {**other, UPSTREAM: base if tree.name == "base" else series})
    assert (regression_test.kind, regression_test.tests) == ("none", ())
    assert regression_test.before is not None
    assert regression_test.after is not None
    assert trees.tests(trees.base) == trees.tests(trees.series) == before


# -- upstream's tests without what excuses the family


def test_excuses_are_taken_out_where_the_test_then_shows_the_repair(trees: Trees) -> None:
    base = trees.tests(trees.base)
    regression_test, _ = run(trees, excused)
    assert (regression_test.kind, regression_test.paths) == ("exception removed", (ELM,))
    assert regression_test.tests == (f"{ELM}::ElmModelTest::{SWITCH}",)
    assert regression_test.reason == f"removed: the expected failure of ElmModelTest.{SWITCH} ({ELM})"
    assert (trees.series / ELM).read_text() == BARE
    assert trees.tests(trees.base) == base


@pytest.mark.parametrize(("base", "series"), [("passed", "passed"), ("failed", "failed"), ("failed", "skipped")])
def test_excuses_come_back_where_the_test_shows_nothing(trees: Trees, base: str, series: str) -> None:
    before = trees.tests(trees.base)

    def answer(tree: Path) -> Answers:
        free = "xfail" not in (tree / ELM).read_text()
        outcome = (base if tree.name == "base" else series) if free else "xfailed"
        return {f"ElmModelTest::{SWITCH}": outcome}

    regression_test, _ = run(trees, answer)
    assert regression_test.kind == RegressionKind.NONE
    assert trees.tests(trees.base) == trees.tests(trees.series) == before


def test_only_the_excuses_that_hide_the_repair_go(trees: Trees) -> None:
    other = OVERRIDE.replace("# It has no loss.", "# Another class.")
    both = TEST_TEXT + f"\n\nclass ElmBigModelTest(ModelTesterMixin, unittest.TestCase):\n    big = True\n\n{other}"
    trees.write(ELM, both.rstrip() + "\n")

    def answer(tree: Path) -> Answers:
        text = (tree / ELM).read_text()
        small: Answers = plain(tree, {f"ElmModelTest::{SWITCH}": "failed"}, {f"ElmModelTest::{SWITCH}": "passed"})
        return {
            **(small if "# It has" not in text else {f"ElmModelTest::{SWITCH}": "xfailed"}),
            f"ElmBigModelTest::{SWITCH}": "xfailed" if "# Another" in text else "failed",
        }

    regression_test, _ = run(trees, answer)
    assert (regression_test.kind, regression_test.tests) == ("exception removed", (f"{ELM}::ElmModelTest::{SWITCH}",))
    assert (trees.series / ELM).read_text() == both.replace(OVERRIDE, "").rstrip() + "\n"


# -- a test of our own


def test_a_test_of_our_own_is_added_where_upstream_has_none(trees: Trees) -> None:
    trees.write(ELM, BARE)
    base = trees.tests(trees.base)
    regression_test, _ = run(trees, ours)
    assert (regression_test.kind, regression_test.paths, regression_test.tests) == (
        "added",
        (ELM,),
        (f"{ELM}::ElmModelTest::{TEST}",),
    )
    text = (trees.series / ELM).read_text()
    assert text.count(f"def {TEST}(self)") == 1
    assert 'plain_blocks = {"ElmLayer"}' in text
    assert "for use_reentrant in (False, True):" in text
    assert trees.tests(trees.base) == base


def test_it_is_not_given_twice(trees: Trees) -> None:
    trees.write(ELM, BARE)
    run(trees, ours)
    after = trees.tests(trees.series)
    assert run(trees, ours)[0].kind == RegressionKind.COVERED
    assert trees.tests(trees.series) == after
    regression_test, _ = run(trees, lambda tree: dict.fromkeys(ours(tree), "passed"))
    assert (regression_test.kind, regression_test.reason.partition(",")[0]) == (
        "none",
        "a test that every block is recomputed",
    )
    assert trees.tests(trees.series) == after


@pytest.mark.parametrize(
    ("base", "series", "reason"),
    [
        ("passed", "passed", "passes on the base already (ElmModelTest)"),
        ("failed", "failed", "fails on the series too (ElmModelTest)"),
        ("skipped", "skipped", f"is skipped (why {TEST} skipped)"),
    ],
)
def test_without_a_test_the_reason_and_the_runs_are_reported(
    trees: Trees, base: str, series: str, reason: str
) -> None:
    trees.write(ELM, BARE)
    before = trees.tests(trees.base)
    regression_test, _ = run(trees, lambda tree: dict.fromkeys(ours(tree), base if tree.name == "base" else series))
    assert regression_test.kind == RegressionKind.NONE
    assert regression_test.reason == f"a test that every block is recomputed, with the same gradients, {reason}"
    assert regression_test.before is not None
    assert regression_test.after is not None
    assert TEST in regression_test.before.command
    assert trees.tests(trees.base) == trees.tests(trees.series) == before


def test_without_a_mode_or_a_class_no_test_of_our_own_is_tried(trees: Trees) -> None:
    trees.write(ELM, BARE)
    regression_test, shown = run(trees, ours, modes=())
    assert (regression_test.kind, len(shown)) == ("impossible", 2)
    assert "verify still finds a fault in every mode" in regression_test.reason
    trees.write(ELM, "import unittest\n")
    regression_test, shown = run(trees, ours)
    assert (regression_test.kind, len(shown)) == ("none", 2)
    assert regression_test.reason == f"no class in {ELM} has upstream's generic model tests"


# -- nothing can be run


def test_a_checkout_without_tests_of_the_family_is_reported(trees: Trees) -> None:
    (trees.series / ELM).rename(trees.series / "tests/models/elm/test_modeling_tf_elm.py")
    regression_test, shown = run(trees, excused)
    assert (regression_test.kind, shown) == ("none", [])
    assert regression_test.reason == "the checkout has no tests/models/elm/test_modeling_*.py"


def test_where_pytest_comes_to_no_test_nothing_is_claimed(trees: Trees) -> None:
    regression_test, shown = run(trees, lambda _: 2)
    assert (regression_test.kind, regression_test.before, regression_test.after, len(shown)) == ("none", None, None, 2)
    assert regression_test.reason.endswith("reached no test (exit code 2): the end")


@pytest.mark.parametrize("text", [TEST_TEXT, BARE], ids=["taking excuses out", "adding a test"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_the_trees_are_as_they_were_after_an_interrupt_in_any_run(
    trees: Trees, text: str, error: type[BaseException]
) -> None:
    trees.write(ELM, text.replace("\n", "\r\n"))
    before = trees.tests(trees.base)
    for last in range(1, 6):
        runs: list[Path] = []

        def answer(tree: Path, runs: list[Path] = runs, last: int = last) -> Answers:
            runs.append(tree)
            if len(runs) == last:
                raise error
            return {**(excused(tree) if text == TEST_TEXT else {}), **ours(tree)}

        with pytest.raises(error):
            run(trees, answer)
        assert trees.tests(trees.base) == trees.tests(trees.series) == before


def test_a_test_that_fails_by_chance_is_not_taken(trees: Trees) -> None:
    runs = []

    def answer(tree: Path) -> Answers:
        runs.append(tree)
        return {UPSTREAM: "failed" if len(runs) == 1 else "passed"}

    assert run(trees, answer)[0].kind == RegressionKind.NONE
