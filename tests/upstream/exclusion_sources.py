"""Test files of upstream with something that keeps a generic test from a family."""

from __future__ import annotations

GENERIC = frozenset({"test_gradient_checkpointing", "test_training_gradient_checkpointing"})
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
"""The tests of a family; `{method}` stands for an override of a generic test."""

OVERRIDES = {
    "skip": """\
    @unittest.skip(reason="no")
    def test_gradient_checkpointing(self):
        pass
""",
    "pytest's skip over several lines, with comments": """\
    # This model is
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


def in_common(condition: str, body: str = "continue", *, test: str = "test_gradient_checkpointing") -> str:
    """The common test file, with a condition in one of its tests."""
    lines = f"            if config.model_type {condition}:\n                {body}\n            run(model)\n"
    return f"class ModelTesterMixin:\n    def {test}(self):\n        for model in self.models:\n{lines}"
