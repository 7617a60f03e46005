"""What test suites use: the assertion, and the mixin under unittest and under pytest."""

from __future__ import annotations

import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from ckpt_surgery.errors import VerifyError
from ckpt_surgery.testing.assertions import assert_checkpointing, default_mode
from tests.measure import toys
from tests.testing import mixin_cases
from tests.testing.mixin_cases import LlamaTest, ToyTest  # noqa: F401  pytest finds and runs them here

pytestmark = [pytest.mark.both, pytest.mark.torch]
ROOT = Path(__file__).parents[2]
DEFAULT = "test_training_gradient_checkpointing"
REENTRANT, NON_REENTRANT = f"{DEFAULT}_use_reentrant_true", f"{DEFAULT}_use_reentrant_false"


def outcome(case: type[unittest.TestCase], test: str) -> unittest.TestResult:
    """What unittest makes of one test."""
    result = unittest.TestResult()
    case(test).run(result)
    return result


def failures(result: unittest.TestResult) -> list[str]:
    assert result.errors == []
    return [text for _, text in result.failures]


def test_a_healthy_model_gives_its_report() -> None:
    report = assert_checkpointing(toys.model_of(toys.Layer, toys.Layer), toys.values())
    assert report.ok
    assert [mode.mode for mode in report.modes] == ["non_reentrant", "reentrant"]


def test_a_broken_model_raises_with_the_report_as_text() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_checkpointing(toys.model_of(toys.PlainLayer, toys.PlainLayer), toys.values(), modes=["reentrant"])
    assert "layers.0 and layers.1" in str(caught.value) or "layers.0, layers.1" in str(caught.value)
    assert "PlainLayer is no GradientCheckpointingLayer" in str(caught.value).replace("\n    ", " ")
    assert "[CKPT001]" in str(caught.value)


def test_options_are_those_of_verify() -> None:
    model = toys.model_of(toys.NormLayer, toys.NormLayer)
    assert assert_checkpointing(model, toys.values(), levels=["set"], modes=["reentrant"]).ok
    with pytest.raises(AssertionError, match="running statistics"):
        assert_checkpointing(model, toys.values(), levels=["state"], modes=["reentrant"])


def test_a_model_that_supports_no_checkpointing_fails_and_says_so() -> None:
    model = mixin_cases.Unsupported(None).train()
    with pytest.raises(AssertionError, match="does not support gradient checkpointing"):
        assert_checkpointing(model, {"values": torch.ones(toys.BATCH, toys.WIDTH)})


def test_where_no_verdict_is_possible_the_error_passes_through() -> None:
    with pytest.raises(VerifyError, match="evaluation mode"):
        assert_checkpointing(toys.model_of(toys.Layer).eval(), toys.values())


@pytest.mark.parametrize("test", [DEFAULT, REENTRANT, NON_REENTRANT])
@pytest.mark.parametrize("case", [mixin_cases.LlamaTest, mixin_cases.ToyTest])
def test_the_mixin_passes_healthy_models_under_unittest(case: type[unittest.TestCase], test: str) -> None:
    result = outcome(case, test)
    assert result.wasSuccessful(), result.failures + result.errors
    assert result.skipped == []


@pytest.mark.parametrize("test", [DEFAULT, REENTRANT, NON_REENTRANT])
def test_every_broken_class_is_a_failure_of_its_own(test: str) -> None:
    first, second = failures(outcome(mixin_cases.NeverCheckpointedTest, test))
    assert "expected one recompute in the backward" in " ".join(first.split())
    assert "[CKPT001]" in first
    assert "testing.py" not in first
    assert first == second


def test_a_class_that_breaks_in_one_mode_fails_in_the_tests_of_that_mode_alone() -> None:
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
