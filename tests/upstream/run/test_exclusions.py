"""What keeps a generic test from a family: found in the text, and taken out with nothing else changed."""

from __future__ import annotations

import pytest

from ckpt_surgery.upstream.run.exclusions import exclusions, generic_tests, overrides, without
from tests.upstream.regression_toys import COMMON_TEXT, TEST_TEXT

GENERIC = frozenset({"test_gradient_checkpointing", "test_training_gradient_checkpointing"})
BEFORE = """\
import unittest

import pytest

from ...test_modeling_common import ModelTesterMixin


class FirModelTest(ModelTesterMixin, unittest.TestCase):
    all_model_classes = ()

    def test_config(self):
        pass

{method}
    def test_last(self):
        self.assertTrue(True)


class FirIntegrationTest(unittest.TestCase):
    pass
"""
AFTER = BEFORE.replace("{method}\n", "")

OVERRIDES = {
    "skip": """\
    @unittest.skip(reason="no")
    def test_gradient_checkpointing(self):
        pass
""",
    "pytest's skip over several lines, with comments": """\
    # This one is
    # hard.
    @pytest.mark.skip(
        reason="no",
    )
    def test_gradient_checkpointing(self):
        super().test_gradient_checkpointing()
""",
    "xfail": """\
    @pytest.mark.xfail(reason="no")
    def test_gradient_checkpointing(self):
        super().test_gradient_checkpointing()
""",
    "expected failure": """\
    @unittest.expectedFailure
    def test_gradient_checkpointing(self):
        super().test_gradient_checkpointing()
""",
    "pass": """\
    def test_gradient_checkpointing(self):
        pass
""",
    "docstring and skipTest": """\
    def test_gradient_checkpointing(self):
        "Not here."
        self.skipTest("no")
""",
    "a shorter list of models": """\
    def test_gradient_checkpointing(self):
        self.all_model_classes = self.all_model_classes[1:]
        super().test_gradient_checkpointing()
""",
}
NO_EXCUSES = {
    "another test": "    @unittest.skip\n    def test_generate(self):\n        pass\n",
    "a test that runs": "    def test_gradient_checkpointing(self):\n        super().test_gradient_checkpointing()\n",
    "a condition of the machine": (
        "    @pytest.mark.skipif(True, reason='no')\n    @slow\n    @require_torch\n"
        "    def test_gradient_checkpointing(self):\n        super().test_gradient_checkpointing()\n"
    ),
}
LISTS = {
    "one of several": ('not in ["elm", "fir"]', 'not in ["fir"]'),
    "the last of several": ('in ("fir", "elm")', 'in ("fir",)'),
    "all but the rest": ('in {"fir", "elm", *others}', 'in {"fir", *others}'),
}


def in_common(condition: str, body: str = "continue", *, test: str = "test_gradient_checkpointing") -> str:
    """A common test file with one condition in one test."""
    lines = f"            if config.model_type {condition}:\n                {body}\n            run(model)\n"
    return f"class ModelTesterMixin:\n    def {test}(self):\n        for model in self.models:\n{lines}"


@pytest.mark.parametrize("method", OVERRIDES.values(), ids=OVERRIDES.keys())
def test_an_exclusion_goes_with_its_comments_and_blank_lines(method: str) -> None:
    used = "    mark = pytest.mark\n" if "pytest" not in method else ""
    before = BEFORE.replace("    all_model", f"{used}    all_model")
    (exclusion,) = overrides(before.replace("{method}", method), GENERIC)
    assert (exclusion.tests, exclusion.classes) == (("test_gradient_checkpointing",), ("FirModelTest",))
    assert "FirModelTest.test_gradient_checkpointing" in exclusion.description
    expected = AFTER.replace("    all_model", f"{used}    all_model")
    assert without(before.replace("{method}", method), [exclusion]) == (
        expected if used else expected.replace("import pytest\n\n", "")
    )


@pytest.mark.parametrize("method", NO_EXCUSES.values(), ids=NO_EXCUSES.keys())
def test_what_is_no_excuse_stays(method: str) -> None:
    assert overrides(BEFORE.replace("{method}", method), GENERIC) == ()


def test_the_first_and_the_last_method_of_a_class_go_cleanly() -> None:
    skip = OVERRIDES["skip"]
    first = f"class ATest(Mixin):\n{skip}\n    def test_last(self):\n        pass\n\n\nx = 1\n"
    last = f"class ATest(Mixin):\n    def test_last(self):\n        pass\n\n{skip}\n\nx = 1\n"
    for source in (first, last):
        assert without(source, overrides(source, GENERIC)) == (
            "class ATest(Mixin):\n    def test_last(self):\n        pass\n\n\nx = 1\n"
        )


def test_several_excuses_go_at_once_or_one_by_one() -> None:
    two = OVERRIDES["skip"] + "\n" + OVERRIDES["pass"].replace("test_grad", "test_training_grad")
    source = BEFORE.replace("{method}", two).replace("import pytest\n\n", "")
    first, second = overrides(source, GENERIC)
    assert without(source, [first, second]) == AFTER.replace("import pytest\n\n", "")
    assert without(source, [second]) == source.replace(
        OVERRIDES["pass"].replace("test_grad", "test_training_grad"), ""
    ).replace("        pass\n\n\n    def test_last", "        pass\n\n    def test_last")
    assert without(source, []) == source


def test_an_override_also_counts_for_the_classes_below() -> None:
    source = BEFORE.replace("{method}", OVERRIDES["skip"]) + "\n\nclass FirOtherTest(FirModelTest):\n    x = 1\n"
    assert overrides(source, GENERIC)[0].classes == ("FirModelTest", "FirOtherTest")


def test_a_class_without_a_base_or_with_nothing_else_is_left_alone() -> None:
    assert overrides(f"class ATest:\n    x = 1\n\n{OVERRIDES['skip']}", GENERIC) == ()
    assert overrides(f"class ATest(Mixin):\n{OVERRIDES['skip']}", GENERIC) == ()


def test_windows_line_ends_stay() -> None:
    source = BEFORE.replace("{method}", OVERRIDES["skip"]).replace("import pytest\n\n", "").replace("\n", "\r\n")
    expected = AFTER.replace("import pytest\n\n", "").replace("\n", "\r\n")
    assert without(source, overrides(source, GENERIC)) == expected


def test_the_generic_tests_are_the_ones_about_checkpointing() -> None:
    assert generic_tests(COMMON_TEXT) == {"test_gradient_checkpointing_enable_disable"}


def test_a_condition_whose_list_gets_empty_goes_with_what_its_comment_says_of_it() -> None:
    (exclusion,) = exclusions(COMMON_TEXT, {"elm", "ElmModel"})
    assert (exclusion.tests, exclusion.classes) == (("test_gradient_checkpointing_enable_disable",), ())
    assert exclusion.description == "the exclusion of elm in test_gradient_checkpointing_enable_disable"
    start = COMMON_TEXT.index("            # A model needs")
    end = COMMON_TEXT.index("self.assertIn(", start)
    short = "            # A model needs blocks of this class.\n            "
    assert without(COMMON_TEXT, [exclusion]) == COMMON_TEXT[:start] + short + COMMON_TEXT[end:]


@pytest.mark.parametrize(("before", "after"), LISTS.values(), ids=LISTS.keys())
def test_one_name_of_a_list_goes(before: str, after: str) -> None:
    source = in_common(before)
    assert without(source, exclusions(source, {"elm"})) == in_common(after)


def test_one_name_of_a_list_over_several_lines_goes_with_its_line() -> None:
    start, rest = 'in [\n                    "fir",\n', '                    "oak",\n                ]'
    source = in_common(f'{start}                    "elm",  # later\n{rest}')
    assert without(source, exclusions(source, {"elm"})) == in_common(start + rest)


@pytest.mark.parametrize("body", ["continue", "self.skipTest('no')"])
def test_a_condition_that_only_leaves_out_goes_whole(body: str) -> None:
    source = in_common('in ["elm"]', body)
    expected = source.replace(f'            if config.model_type in ["elm"]:\n                {body}\n', "")
    assert without(source, exclusions(source, {"elm"})) == expected


@pytest.mark.parametrize(
    "source",
    [
        in_common('not in ["fir"]'),
        in_common('in ["elm"]', "weaker(model)"),
        in_common('in ["elm"] and config.old'),
        in_common('not in ["elm"]', test="test_training"),
    ],
    ids=["another model", "something else instead", "more conditions", "another test"],
)
def test_what_is_not_understood_or_not_ours_is_no_exclusion(source: str) -> None:
    assert exclusions(source, {"elm"}) == ()


def test_a_list_in_a_helper_counts_for_the_tests_that_call_it() -> None:
    source = in_common('in ["elm"]', test="check_gradient_checkpointing")
    source += (
        "\n    def test_a(self):\n        self.check_gradient_checkpointing()\n\n    def test_b(self):\n        pass\n"
    )
    assert exclusions(source, {"elm"})[0].tests == ("test_a",)


def test_the_toy_has_one_excuse_of_each_kind() -> None:
    assert len(overrides(TEST_TEXT, generic_tests(COMMON_TEXT))) == len(exclusions(COMMON_TEXT, {"elm"})) == 1
