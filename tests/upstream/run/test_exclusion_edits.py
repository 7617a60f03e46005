"""Exclusions are removed with their comments and blank lines, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from ckpt_surgery.upstream.run.exclusion_edits import apply_removals
from ckpt_surgery.upstream.run.exclusions import Exclusion, listed_exclusions, overrides
from tests.upstream.exclusion_sources import FAMILY_TESTS, GENERIC, OVERRIDES, in_common
from tests.upstream.regression_toys import COMMON_TEXT

AFTER = FAMILY_TESTS.replace("{method}\n", "")
LISTS = {
    "one of several": ('not in ["elm", "fir"]', 'not in ["fir"]'),
    "the last of several": ('in ("fir", "elm")', 'in ("fir",)'),
    "all but the rest": ('in {"fir", "elm", *others}', 'in {"fir", *others}'),
}


def removed(source: str, exclusions: Iterable[Exclusion]) -> str:
    return apply_removals(source, [edit for exclusion in exclusions for edit in exclusion.edits])


@pytest.mark.parametrize("method", OVERRIDES.values(), ids=OVERRIDES.keys())
def test_an_override_goes_with_its_comments_and_blank_lines(method: str) -> None:
    used = "    mark = pytest.mark\n" if "pytest" not in method else ""
    before = FAMILY_TESTS.replace("    all_model", f"{used}    all_model")
    (exclusion,) = overrides(before.replace("{method}", method), GENERIC)
    expected = AFTER.replace("    all_model", f"{used}    all_model")
    assert removed(before.replace("{method}", method), [exclusion]) == (
        expected if used else expected.replace("import pytest\n\n", "")
    )


def test_the_first_and_the_last_method_of_a_class_go_cleanly() -> None:
    skip = OVERRIDES["skip"]
    first = f"class ATest(Mixin):\n{skip}\n    def test_last(self):\n        pass\n\n\nx = 1\n"
    last = f"class ATest(Mixin):\n    def test_last(self):\n        pass\n\n{skip}\n\nx = 1\n"
    for source in (first, last):
        assert removed(source, overrides(source, GENERIC)) == (
            "class ATest(Mixin):\n    def test_last(self):\n        pass\n\n\nx = 1\n"
        )


def test_several_overrides_go_at_once_or_one_by_one() -> None:
    two = OVERRIDES["skip"] + "\n" + OVERRIDES["pass"].replace("test_grad", "test_training_grad")
    source = FAMILY_TESTS.replace("{method}", two).replace("import pytest\n\n", "")
    first, second = overrides(source, GENERIC)
    assert removed(source, [first, second]) == AFTER.replace("import pytest\n\n", "")
    assert removed(source, [second]) == source.replace(
        OVERRIDES["pass"].replace("test_grad", "test_training_grad"), ""
    ).replace("        pass\n\n\n    def test_last", "        pass\n\n    def test_last")
    assert removed(source, []) == source


def test_windows_line_ends_stay() -> None:
    source = FAMILY_TESTS.replace("{method}", OVERRIDES["skip"]).replace("import pytest\n\n", "").replace("\n", "\r\n")
    expected = AFTER.replace("import pytest\n\n", "").replace("\n", "\r\n")
    assert removed(source, overrides(source, GENERIC)) == expected


def test_a_condition_whose_list_becomes_empty_goes_with_the_sentences_about_it() -> None:
    (exclusion,) = listed_exclusions(COMMON_TEXT, {"elm", "ElmModel"})
    start = COMMON_TEXT.index("            # A model needs")
    end = COMMON_TEXT.index("self.assertIn(", start)
    short = "            # A model needs blocks of this class.\n            "
    assert removed(COMMON_TEXT, [exclusion]) == COMMON_TEXT[:start] + short + COMMON_TEXT[end:]


@pytest.mark.parametrize(("before", "after"), LISTS.values(), ids=LISTS.keys())
def test_one_name_of_a_list_goes(before: str, after: str) -> None:
    source = in_common(before)
    assert removed(source, listed_exclusions(source, {"elm"})) == in_common(after)


def test_one_name_of_a_list_over_several_lines_goes_with_its_line() -> None:
    start, rest = 'in [\n                    "fir",\n', '                    "oak",\n                ]'
    source = in_common(f'{start}                    "elm",  # later\n{rest}')
    assert removed(source, listed_exclusions(source, {"elm"})) == in_common(start + rest)


@pytest.mark.parametrize("body", ["continue", "self.skipTest('no')"])
def test_a_condition_that_only_skips_is_removed_whole(body: str) -> None:
    source = in_common('in ["elm"]', body)
    expected = source.replace(f'            if config.model_type in ["elm"]:\n                {body}\n', "")
    assert removed(source, listed_exclusions(source, {"elm"})) == expected
