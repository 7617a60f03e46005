"""The mixin for transformers' own test classes, under unittest and under pytest."""

from __future__ import annotations

import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from ckpt_surgery.testing.tester_mixin import default_mode
from tests.measure import toys
from tests.testing import mixin_cases
from tests.testing.mixin_cases import LlamaTest, ToyTest  # noqa: F401  pytest finds and runs them here

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[2]
DEFAULT = "test_training_gradient_checkpointing"
REENTRANT, NON_REENTRANT = f"{DEFAULT}_use_reentrant_true", f"{DEFAULT}_use_reentrant_false"


def outcome(case: type[unittest.TestCase], test: str) -> unittest.TestResult:
    result = unittest.TestResult()
    case(test).run(result)
    return result


def failures(result: unittest.TestResult) -> list[str]:
    assert result.errors == []
    return [text for _, text in result.failures]


@pytest.mark.both
@pytest.mark.parametrize("test", [DEFAULT, REENTRANT, NON_REENTRANT])
@pytest.mark.parametrize("case", [mixin_cases.LlamaTest, mixin_cases.ToyTest])
def test_the_mixin_passes_healthy_models_under_unittest(case: type[unittest.TestCase], test: str) -> None:
    result = outcome(case, test)
    assert result.wasSuccessful(), result.failures + result.errors
    assert result.skipped == []


@pytest.mark.both
@pytest.mark.parametrize("test", [DEFAULT, REENTRANT, NON_REENTRANT])
def test_every_broken_class_is_a_separate_failure(test: str) -> None:
    first, second = failures(outcome(mixin_cases.NeverCheckpointedTest, test))
    assert "expected one recompute in the backward" in " ".join(first.split())
    assert "[CKPT001]" in first
    assert "assertions.py" not in first
    assert "tester_mixin.py" not in first
    assert first == second


@pytest.mark.both
def test_a_class_that_breaks_in_one_mode_fails_only_that_modes_tests() -> None:
    broken = {test: bool(failures(outcome(mixin_cases.ByKeywordTest, test))) for test in (REENTRANT, NON_REENTRANT)}
    assert broken == {REENTRANT: True, NON_REENTRANT: False}
    assert bool(failures(outcome(mixin_cases.ByKeywordTest, DEFAULT))) == (default_mode() == "reentrant")


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (mixin_cases.UnsupportedTest, "none of all_model_classes supports gradient checkpointing"),
        (mixin_cases.NotTrainingTest, "the model tester has is_training = False"),
    ],
)
def test_what_cannot_be_tested_is_skipped_with_the_reason(case: type[unittest.TestCase], reason: str) -> None:
    for test in (DEFAULT, REENTRANT, NON_REENTRANT):
        result = outcome(case, test)
        assert [said for _, said in result.skipped] == [reason]
        assert result.wasSuccessful()


@pytest.mark.both
def test_the_default_mode_is_that_of_the_installed_release() -> None:
    class Watched(toys.Model):
        def _set_gradient_checkpointing(
            self, enable: bool = True, gradient_checkpointing_func: Any = None, **more: Any
        ) -> None:
            self.keywords = gradient_checkpointing_func.keywords

    model: Any = toys.model_of(toys.Layer, whole=Watched)
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable()
    assert model.keywords["use_reentrant"] == (default_mode() == "reentrant")


def test_the_mixin_runs_under_the_command_of_unittest() -> None:
    command = [
        sys.executable,
        "-m",
        "unittest",
        "tests.testing.mixin_cases.ToyTest",
        "tests.testing.mixin_cases.NeverCheckpointedTest",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert "Ran 6 tests" in done.stderr
    assert "FAILED (failures=6)" in done.stderr
    assert "CKPT001" in done.stderr
