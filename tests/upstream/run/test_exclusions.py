"""Exclusions of a family from the generic tests are found in the text of test files."""

from __future__ import annotations

import pytest

from ckpt_surgery.upstream.run.exclusions import ExclusionKind, generic_tests, listed_exclusions, overrides
from tests.upstream.exclusion_sources import FAMILY_TESTS, GENERIC, OVERRIDES, in_common
from tests.upstream.regression_toys import COMMON_TEXT, TEST_TEXT

KINDS = {
    "skip": ExclusionKind.SKIP,
    "pytest's skip over several lines, with comments": ExclusionKind.SKIP,
    "xfail": ExclusionKind.EXPECTED_FAILURE,
    "expected failure": ExclusionKind.EXPECTED_FAILURE,
    "pass": ExclusionKind.EMPTY_OVERRIDE,
    "docstring and skipTest": ExclusionKind.EMPTY_OVERRIDE,
    "a shorter list of models": ExclusionKind.FEWER_MODELS,
}
RUNNING = {
    "another test": "    @unittest.skip\n    def test_generate(self):\n        pass\n",
    "a test that runs": "    def test_gradient_checkpointing(self):\n        super().test_gradient_checkpointing()\n",
    "a condition of the machine": (
        "    @pytest.mark.skipif(True, reason='no')\n    @slow\n    @require_torch\n"
        "    def test_gradient_checkpointing(self):\n        super().test_gradient_checkpointing()\n"
    ),
}


def test_the_generic_tests_are_the_ones_about_checkpointing() -> None:
    assert generic_tests(COMMON_TEXT) == {"test_gradient_checkpointing_enable_disable"}


@pytest.mark.parametrize("name", OVERRIDES)
def test_an_override_is_found_with_its_kind_and_its_class(name: str) -> None:
    (exclusion,) = overrides(FAMILY_TESTS.replace("{method}", OVERRIDES[name]), GENERIC)
    assert (exclusion.tests, exclusion.classes) == (("test_gradient_checkpointing",), ("FirModelTest",))
    assert exclusion.kind is KINDS[name]
    assert exclusion.description == f"{KINDS[name].value} of FirModelTest.test_gradient_checkpointing"


@pytest.mark.parametrize("method", RUNNING.values(), ids=RUNNING.keys())
def test_a_method_that_runs_the_generic_test_in_full_is_no_exclusion(method: str) -> None:
    assert overrides(FAMILY_TESTS.replace("{method}", method), GENERIC) == ()


def test_an_override_also_concerns_the_subclasses_in_the_file() -> None:
    source = FAMILY_TESTS.replace("{method}", OVERRIDES["skip"]) + "\n\nclass FirOtherTest(FirModelTest):\n    x = 1\n"
    assert overrides(source, GENERIC)[0].classes == ("FirModelTest", "FirOtherTest")


def test_a_class_without_a_base_or_with_nothing_else_is_left_alone() -> None:
    assert overrides(f"class ATest:\n    x = 1\n\n{OVERRIDES['skip']}", GENERIC) == ()
    assert overrides(f"class ATest(Mixin):\n{OVERRIDES['skip']}", GENERIC) == ()


def test_a_list_is_found_with_its_names_and_its_test() -> None:
    (exclusion,) = listed_exclusions(COMMON_TEXT, {"elm", "ElmModel"})
    assert (exclusion.tests, exclusion.classes) == (("test_gradient_checkpointing_enable_disable",), ())
    assert exclusion.description == "the exclusion of elm in test_gradient_checkpointing_enable_disable"


@pytest.mark.parametrize(
    "source",
    [
        in_common('not in ["fir"]'),
        in_common('in ["elm"]', "weaker(model)"),
        in_common('in ["elm"] and config.old'),
        in_common('not in ["elm"]', test="test_training"),
        in_common('not in [\n                    "fir", "elm",\n                ]'),
    ],
    ids=[
        "another model",
        "something else instead",
        "more conditions",
        "another test",
        "two names on a line",
    ],
)
def test_a_condition_that_is_not_understood_or_not_about_the_family_is_no_exclusion(source: str) -> None:
    assert listed_exclusions(source, {"elm"}) == ()


def test_a_list_in_a_helper_concerns_the_tests_that_call_it() -> None:
    source = in_common('in ["elm"]', test="check_gradient_checkpointing")
    source += (
        "\n    def test_a(self):\n        self.check_gradient_checkpointing()\n\n    def test_b(self):\n        pass\n"
    )
    assert listed_exclusions(source, {"elm"})[0].tests == ("test_a",)


def test_the_toy_has_one_exclusion_of_each_kind() -> None:
    assert len(overrides(TEST_TEXT, generic_tests(COMMON_TEXT))) == len(listed_exclusions(COMMON_TEXT, {"elm"})) == 1
