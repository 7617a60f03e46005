"""Overrides that exempt a family from a generic test are found, and removed with only their comments."""

from __future__ import annotations

import pytest

from ckpt_surgery.upstream.run.exclusions import Exclusion, without
from tests.upstream.regression_toys import ELM

FIR = "tests/models/fir/test_modeling_fir.py"
FAMILY_TESTS = """\
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
"""The tests of a family; `{method}` is an override of a generic test."""

OVERRIDES = {
    "skip": (
        "the skip",
        """\
    @unittest.skip(reason="no")
    def test_gradient_checkpointing(self):
        pass
""",
    ),
    "pytest's skip over several lines, with comments": (
        "the skip",
        """\
    # This model is
    # hard.
    @pytest.mark.skip(
        reason="no",
    )
    def test_gradient_checkpointing(self):
        super().test_gradient_checkpointing()
""",
    ),
    "xfail": (
        "the expected failure",
        """\
    @pytest.mark.xfail(reason="no")
    def test_gradient_checkpointing(self):
        super().test_gradient_checkpointing()
""",
    ),
    "expected failure": (
        "the expected failure",
        """\
    @unittest.expectedFailure
    def test_gradient_checkpointing(self):
        super().test_gradient_checkpointing()
""",
    ),
    "pass": (
        "the empty override",
        """\
    def test_gradient_checkpointing(self):
        pass
""",
    ),
    "docstring and skipTest": (
        "the empty override",
        """\
    def test_gradient_checkpointing(self):
        "Not here."
        self.skipTest("no")
""",
    ),
    "a shorter list of models": (
        "the shorter list of models",
        """\
    def test_gradient_checkpointing(self):
        self.all_model_classes = self.all_model_classes[1:]
        super().test_gradient_checkpointing()
""",
    ),
}
RUNNING = {
    "another test": "    @unittest.skip\n    def test_generate(self):\n        pass\n",
    "a test that runs": "    def test_gradient_checkpointing(self):\n        super().test_gradient_checkpointing()\n",
    "a condition of the machine": (
        "    @pytest.mark.skipif(True, reason='no')\n    @slow\n    @require_torch\n"
        "    def test_gradient_checkpointing(self):\n        super().test_gradient_checkpointing()\n"
    ),
}
SKIP = OVERRIDES["skip"][1]
AFTER = FAMILY_TESTS.replace("{method}\n", "")


def with_method(method: str) -> str:
    return FAMILY_TESTS.replace("{method}", method)


def removed(source: str) -> str:
    return without(source, Exclusion.found_in(FIR, source))


@pytest.mark.parametrize(("kind", "method"), OVERRIDES.values(), ids=OVERRIDES)
def test_an_override_is_found_and_goes_with_its_comments_and_blank_lines(kind: str, method: str) -> None:
    (exclusion,) = Exclusion.found_in(FIR, with_method(method))
    assert str(exclusion) == f"{kind} of FirModelTest.test_gradient_checkpointing ({FIR})"
    assert exclusion.concerns([f"{FIR}::FirModelTest::test_gradient_checkpointing"])
    for other in ("FirModelTest::test_config", "FirIntegrationTest::test_gradient_checkpointing"):
        assert not exclusion.concerns([f"{FIR}::{other}", f"{ELM}::FirModelTest::test_gradient_checkpointing"])
    used = "    mark = pytest.mark\n" if "pytest" not in method else ""
    before = with_method(method).replace("    all_model", f"{used}    all_model")
    expected = AFTER.replace("    all_model", f"{used}    all_model")
    assert removed(before) == (expected if used else expected.replace("import pytest\n\n", ""))


@pytest.mark.parametrize("method", RUNNING.values(), ids=RUNNING.keys())
def test_a_method_that_runs_the_generic_test_in_full_is_no_exclusion(method: str) -> None:
    assert Exclusion.found_in(FIR, with_method(method)) == []


def test_an_override_also_concerns_the_subclasses_in_the_file() -> None:
    source = with_method(SKIP) + "\n\nclass FirOtherTest(FirModelTest):\n    x = 1\n"
    assert Exclusion.found_in(FIR, source)[0].classes == ("FirModelTest", "FirOtherTest")


def test_several_overrides_go_at_once_or_one_by_one() -> None:
    two = SKIP + "\n" + OVERRIDES["pass"][1].replace("test_grad", "test_training_grad")
    source = with_method(two).replace("import pytest\n\n", "")
    first, second = Exclusion.found_in(FIR, source)
    assert without(source, [first, second]) == AFTER.replace("import pytest\n\n", "")
    assert without(source, [second]) == with_method(SKIP).replace("import pytest\n\n", "")
    assert without(source, []) == source
