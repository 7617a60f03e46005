"""An instrumented step records entries, bytes and gradients, and leaves the model unchanged."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import numpy
import torch
import transformers
from torch import Tensor, nn

from ckpt_surgery.measure.block_entries import Entries
from ckpt_surgery.measure.compare import compare
from ckpt_surgery.measure.loss import loss_of
from ckpt_surgery.measure.results import Mode
from ckpt_surgery.measure.step import run_step
from ckpt_surgery.measure.switch import switch_checkpointing
from tests.measure.toys import (
    CachingLayer,
    Layer,
    PositionalCache,
    Slipping,
    SureLayer,
    model_of,
    run,
    values,
)

pytestmark = [pytest.mark.both, pytest.mark.torch]

both_modes = pytest.mark.parametrize("mode", ["non_reentrant", "reentrant"])


def test_an_input_gets_a_gradient_only_where_it_requires_one() -> None:
    model = model_of(Layer)
    given = values()["values"]
    assert run(model).input_gradients == {}
    wanting = {"values": given.clone().requires_grad_()}
    gradient = run_step(model, wanting, blocks={}).input_gradients["values"]
    assert gradient is not None
    assert gradient.shape == given.shape
    assert wanting["values"].grad is None


def test_the_same_seed_draws_the_same_dropout() -> None:
    model = model_of(Layer, Layer)
    losses = [run_step(model, values(), blocks={}, seed=seed).loss for seed in (3, 3, 4)]
    assert losses[0] == losses[1] != losses[2]


@both_modes
def test_the_cache_is_measured_before_after_the_forward_and_at_the_end(mode: Mode) -> None:
    model = model_of(CachingLayer, whole=PositionalCache)
    blocks = {"0": model.layers[0]}
    given = transformers.DynamicCache()
    inputs = {**values(), "past_key_values": given}
    assert run_step(model, inputs, blocks=blocks).cache == {"past_key_values": (0, 1, 1)}
    assert run_step(model, inputs, blocks=blocks, checkpointing=mode).cache == {"past_key_values": (0, 1, 2)}
    assert given.get_seq_length() == 0  # the step had its own


def test_what_a_forward_that_breaks_did_not_reach_is_missing() -> None:
    record = run_step(model_of(Layer), {"nothing": 1}, blocks={})
    assert record.error is not None
    assert str(record.error).startswith("forward raised TypeError: ")
    assert record.loss != record.loss
    assert set(record.gradients.values()) == {None}
    assert (record.memory.kept, record.flops.backward) == (0, 0)


@both_modes
def test_blocks_recomputed_from_another_generator_state_are_named(mode: Mode) -> None:
    record = run(model_of(Layer, Layer, whole=Slipping), mode)
    assert record.rng_mismatches == ("0", "1")
    assert record.rng_moved
    healthy = run(model_of(Layer, Layer), mode)
    assert (healthy.rng_mismatches, healthy.rng_moved) == ((), False)


@pytest.mark.parametrize("draw", [random.random, numpy.random.rand])
def test_a_backward_that_draws_from_other_generators_than_torchs_is_noted(draw: Callable[[], object]) -> None:
    class Drawing(Layer):
        runs = 0

        def forward(self, hidden_states: Tensor) -> Tensor:
            self.runs += 1
            if self.runs > 1:
                draw()
            return super().forward(hidden_states)

    assert run(model_of(Drawing), "non_reentrant").rng_moved
    assert not run(model_of(Drawing)).rng_moved


def test_rounded_otherwise_change_no_more_than_the_last_bits() -> None:
    model = model_of(SureLayer, SureLayer)
    one, other = (run_step(model, values(), blocks={}, rounding_seed=turn) for turn in (0, 1))
    assert one.error is other.error is None
    verdict = compare(one, other, floors={}, tolerance=1e-12)
    assert 0 < verdict.error < 1e-12
    assert not verdict.wrong


def test_checkpointing_is_off_in_the_reference_and_restored_afterwards() -> None:
    model = model_of(Layer)
    switch_checkpointing(model, "non_reentrant")
    assert run(model).entries == {"0": Entries(1, 0)}
    assert vars(model.layers[0])["gradient_checkpointing"]


def test_a_model_that_cannot_checkpoint_is_refused() -> None:
    with pytest.raises(TypeError, match="Linear has no method gradient_checkpointing_enable"):
        run_step(nn.Linear(2, 2), {}, blocks={}, checkpointing="reentrant")


def test_a_block_of_another_model_is_refused() -> None:
    with pytest.raises(ValueError, match=r"block 'x' \(Layer\) is not a module of Model"):
        run(model_of(Layer), None, {"x": Layer()})


def test_the_loss_of_an_output_without_one_depends_on_every_float_tensor() -> None:
    first, second = (torch.ones(3, requires_grad=True) for _ in range(2))
    loss = loss_of({"a": first, "b": [(second, torch.ones(3, dtype=torch.long))], "cache": object()})
    torch.autograd.backward(loss)
    for tensor in (first, second):
        assert tensor.grad is not None
        assert len(set(tensor.grad.tolist())) == 3
    assert loss_of({"loss": torch.tensor(2.0, requires_grad=True), "logits": first}) == 2.0


def test_an_output_without_a_gradient_has_no_loss() -> None:
    with pytest.raises(ValueError, match="no loss and no float tensor"):
        loss_of((torch.ones(2), None))


def test_the_loss_of_an_output_leaves_out_past_state() -> None:
    first, past = (torch.ones(3, requires_grad=True) for _ in range(2))
    torch.autograd.backward(loss_of({"logits": first, "past_key_values": ((past, past),)}))
    assert first.grad is not None
    assert past.grad is None
