"""Every check of `compare` fails on the fault that it is there for, and passes where there is none."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import nn

from ckpt_surgery.verification.compare import Verdict, compare
from ckpt_surgery.verification.entries import Entries
from ckpt_surgery.verification.probe import Checkpointing, RunRecord
from tests.verification.toys import (
    CountingLayer,
    FailingLayer,
    Layer,
    Model,
    NormLayer,
    PlainLayer,
    Stage,
    model_of,
    run,
)

pytestmark = [pytest.mark.both, pytest.mark.torch]

both_modes = pytest.mark.parametrize("mode", ["non_reentrant", "reentrant"])


def verdict_of(model: Model, mode: Checkpointing, blocks: Mapping[str, nn.Module] | None = None) -> Verdict:
    return compare(run(model, blocks=blocks), run(model, mode, blocks))


@both_modes
def test_a_healthy_model_passes_with_bit_equal_gradients(mode: Checkpointing) -> None:
    model = model_of(Layer, Layer)
    reference, checkpointed = run(model), run(model, mode)
    verdict = compare(reference, checkpointed)
    assert (verdict.ok, verdict.reasons, verdict.notes, verdict.error) == (True, (), (), 0.0)
    assert reference.entries == {"0": Entries(1, 0), "1": Entries(1, 0)}
    assert checkpointed.entries == {"0": Entries(1, 1), "1": Entries(1, 1)}
    assert checkpointed.saved_bytes < reference.saved_bytes


def test_a_tensor_by_keyword_loses_its_gradient_when_reentrant() -> None:
    model = model_of(Layer, Layer, by_keyword=True)
    model.layers.append(PlainLayer().double())
    verdict = verdict_of(model, "reentrant", dict(list(model.layers.named_children())[:2]))
    assert verdict.lost == tuple(
        f"{module}.{name}" for module in ("first", "layers.0.linear", "layers.1.linear") for name in ("weight", "bias")
    )
    assert verdict.reasons[0] == (
        "6 of 8 gradients are lost under checkpointing: first.weight, first.bias, layers.0.linear.weight, ...."
    )
    assert verdict_of(model, "non_reentrant", dict(list(model.layers.named_children())[:2])).ok


@both_modes
def test_a_recompute_of_another_function_gives_wrong_values(mode: Checkpointing) -> None:
    verdict = verdict_of(model_of(CountingLayer), mode)
    assert not verdict.lost
    assert "layers.0.linear.weight" in verdict.wrong
    assert verdict.error > 0.1
    assert [r.split(" under")[0] for r in verdict.reasons] == ["4 of 4 gradients have other values"]


@both_modes
def test_a_plain_block_is_not_recomputed(mode: Checkpointing) -> None:
    verdict = verdict_of(model_of(PlainLayer, Layer), mode)
    assert verdict.reasons == ("1 of 2 blocks are not recomputed in the backward: 0.",)


@both_modes
def test_a_layer_inside_a_layer_runs_three_times_a_step(mode: Checkpointing) -> None:
    model = model_of(Stage)
    stage = model.layers[0]
    verdict = verdict_of(model, mode, {"stage": stage, "inner": stage.get_submodule("inner")})
    assert verdict.reasons == ("Block inner is entered 3 times a step (1 in the forward, 2 in the backward).",)
    assert run(model, mode, {"stage": stage}).entries == {"stage": Entries(1, 1)}


def test_a_block_recomputed_without_checkpointing_is_named() -> None:
    record = run(model_of(Layer))
    inline = dataclasses.replace(record, entries={"0": Entries(1, 1)})
    assert compare(inline, inline).reasons == ("1 of 1 blocks are recomputed without checkpointing too: 0.",)


def test_a_block_that_runs_another_number_of_times_in_the_forward_is_named() -> None:
    record = run(model_of(Layer))
    twice = dataclasses.replace(record, entries={"0": Entries(2, 2)})
    assert compare(record, twice).reasons == ("1 of 1 blocks run another number of times in the forward: 0.",)


def test_another_loss_is_a_reason() -> None:
    record = run(model_of(Layer), "non_reentrant")
    reference = dataclasses.replace(record, entries={"0": Entries(1, 0)})
    assert compare(reference, record).ok
    for loss in (record.loss * (1 + 1e-6), math.nan):
        assert compare(reference, dataclasses.replace(record, loss=loss)).reasons[0].startswith("The loss is ")


@both_modes
def test_a_run_that_breaks_is_a_reason_with_its_pass(mode: Checkpointing) -> None:
    verdict = verdict_of(model_of(FailingLayer), mode)
    assert verdict.reasons == ("The checkpointed run failed: backward raised RuntimeError: the cache is full.",)


@both_modes
def test_running_statistics_updated_twice_are_a_note(mode: Checkpointing) -> None:
    verdict = verdict_of(model_of(NormLayer), mode)
    assert verdict.ok
    assert verdict.notes == (
        "3 buffers end the step with other values: layers.0.norm.running_mean, layers.0.norm.running_var, "
        "layers.0.norm.num_batches_tracked.",
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        pytest.param(1e-9, 0.0, (), id="noise beside zero is equal"),
        pytest.param(0.0, 1e-9, (), id="zero beside noise is equal"),
        pytest.param(1e-3, 0.0, ("lost",), id="a value that vanishes is lost"),
        pytest.param(0.0, 1e-3, ("gained",), id="a value from nowhere is gained"),
        pytest.param(1e-9, None, ("lost",), id="noise that is missing altogether is lost"),
        pytest.param(0.0, None, (), id="zero and missing are the same"),
        pytest.param(None, 1e-3, ("gained",), id="a gradient that only checkpointing has is gained"),
        pytest.param(1e-2, 1.001e-2, ("wrong",), id="one part in a thousand is wrong"),
        pytest.param(1e-2, 1.0001e-2, (), id="one part in ten thousand is float32"),
        pytest.param(1e-3, math.nan, ("wrong",), id="not a number is wrong"),
    ],
)
def test_gradients_are_compared_above_a_noise_floor(
    ours: float | None, theirs: float | None, expected: tuple[str, ...]
) -> None:
    def record(value: float | None) -> RunRecord:
        gradients = {"large": torch.ones(2), "small": None if value is None else torch.tensor([0.0, value])}
        return RunRecord(None, 0, 1.0, gradients, {}, {}, {}, 0)

    verdict = compare(record(ours), record(theirs))
    assert tuple(kind for kind in ("lost", "gained", "wrong") if getattr(verdict, kind) == ("small",)) == expected
    assert verdict.ok is not bool(expected)
