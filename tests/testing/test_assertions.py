"""The assertion for test suites."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from ckpt_surgery.errors import VerifyError
from ckpt_surgery.runtime.surgery.wrap import wrap_blocks
from ckpt_surgery.testing.assertions import assert_checkpointing
from tests.measure import toys
from tests.testing import mixin_cases

pytestmark = [pytest.mark.both, pytest.mark.torch]


def test_a_healthy_model_gives_its_report() -> None:
    report = assert_checkpointing(toys.model_of(toys.Layer, toys.Layer), toys.values())
    assert report.ok
    assert [mode.mode for mode in report.modes] == ["non_reentrant", "reentrant"]


def test_a_broken_model_raises_with_the_report_as_text() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_checkpointing(toys.model_of(toys.PlainLayer, toys.PlainLayer), toys.values(), modes=["reentrant"])
    assert "layers.0 and layers.1" in str(caught.value) or "layers.0, layers.1" in str(caught.value)
    assert "PlainLayer is not a GradientCheckpointingLayer" in str(caught.value).replace("\n    ", " ")
    assert "[CKPT001]" in str(caught.value)


def test_options_are_those_of_verify() -> None:
    model = toys.model_of(toys.NormLayer, toys.NormLayer)
    assert assert_checkpointing(model, toys.values(), levels=["set"], modes=["reentrant"]).ok
    with pytest.raises(AssertionError, match="running statistics"):
        assert_checkpointing(model, toys.values(), levels=["state"], modes=["reentrant"])


def test_a_model_of_which_nothing_was_measured_fails_and_says_so() -> None:
    model = toys.model_of(toys.Layer, toys.Layer)
    wrap_blocks(model)
    assert assert_checkpointing(model, toys.values(), levels=["set"]).ok
    with pytest.raises(AssertionError, match="gradient checkpointing was not measured"):
        assert_checkpointing(model, toys.values(), levels=["set"], modes=["reentrant"])


def test_a_model_that_supports_no_checkpointing_fails_and_says_so() -> None:
    model = mixin_cases.Unsupported(None).train()
    with pytest.raises(AssertionError, match="does not support gradient checkpointing"):
        assert_checkpointing(model, {"values": torch.ones(toys.BATCH, toys.WIDTH)})


def test_where_no_verdict_is_possible_the_error_passes_through() -> None:
    with pytest.raises(VerifyError, match="evaluation mode"):
        assert_checkpointing(toys.model_of(toys.Layer).eval(), toys.values())
