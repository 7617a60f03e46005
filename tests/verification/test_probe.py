"""What one instrumented step records: entries, bytes, gradients, and a model that is left as it was."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ckpt_surgery.verification.entries import Entries
from ckpt_surgery.verification.preserve import left_as_found
from ckpt_surgery.verification.probe import Checkpointing, loss_of, run_step, switch_checkpointing
from tests.verification.toys import (
    WIDTH,
    BareLayer,
    FailingLayer,
    Layer,
    NormLayer,
    PlainLayer,
    SharingLayer,
    StageOfLayers,
    model_of,
    run,
    values,
)

pytestmark = [pytest.mark.both, pytest.mark.torch]

both_modes = pytest.mark.parametrize("mode", ["non_reentrant", "reentrant"])


@both_modes
def test_a_block_without_submodules_is_counted(mode: Checkpointing) -> None:
    assert run(model_of(BareLayer), mode).entries == {"0": Entries(1, 1)}


@both_modes
def test_a_block_that_only_calls_another_layer_is_counted_once(mode: Checkpointing) -> None:
    assert run(model_of(StageOfLayers), mode).entries == {"0": Entries(1, 1)}


@both_modes
def test_blocks_that_share_a_module_are_counted_apart(mode: Checkpointing) -> None:
    shared = PlainLayer()
    model = model_of(lambda: SharingLayer(shared), PlainLayer, lambda: SharingLayer(shared))
    assert run(model, mode).entries == {"0": Entries(1, 1), "1": Entries(1, 0), "2": Entries(1, 1)}


@both_modes
def test_a_block_that_runs_twice_is_counted_twice(mode: Checkpointing) -> None:
    layer = Layer()
    model = model_of(lambda: layer, lambda: layer)
    assert run(model, mode, {"layer": layer}).entries == {"layer": Entries(2, 2)}


def test_a_recompute_behind_a_replaced_forward_is_counted() -> None:
    model = model_of(PlainLayer)
    layer = model.layers[0]
    original = layer.forward
    layer.forward = lambda hidden_states: checkpoint(original, hidden_states, use_reentrant=False)
    assert run(model).entries == {"0": Entries(1, 1)}


def test_the_bytes_held_are_those_of_the_saved_tensors() -> None:
    class Exponentials(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            return torch.exp(torch.exp(values))  # each saves its result

    model = Exponentials()
    inputs = {"values": values()["values"].requires_grad_()}
    record = run_step(model, inputs, blocks={}, loss=torch.sum)
    assert record.saved_bytes == 2 * 3 * WIDTH * 8


def test_parameters_are_not_among_the_bytes_held() -> None:
    model = nn.Linear(WIDTH, WIDTH).double()
    inputs = {"input": values()["values"].requires_grad_()}
    assert run_step(model, inputs, blocks={}, loss=torch.sum).saved_bytes == 3 * WIDTH * 8


def test_a_tensor_written_over_before_the_backward_is_still_an_error() -> None:
    class Overwriting(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            result = torch.exp(values)
            total = result.sum()
            with torch.no_grad():
                result.zero_()
            return total

    record = run_step(Overwriting(), {"values": values()["values"].requires_grad_()}, blocks={}, loss=torch.sum)
    assert record.error is not None
    assert record.error.startswith("backward raised RuntimeError: a tensor needed for the backward has been modified")


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


def test_generate_runs_in_evaluation_mode_from_the_seed() -> None:
    model = model_of(Layer)
    first, second = (run_step(model, values(), blocks={}, generate=values()).generated for _ in range(2))
    assert first is not None
    assert second is not None
    assert torch.equal(first, second)
    assert run(model).generated is None


def test_a_generate_that_breaks_is_recorded() -> None:
    record = run_step(model_of(Layer), values(), blocks={}, generate={"prompt": 1})
    assert record.generated is None
    assert record.error is not None
    assert record.error.startswith("generate raised TypeError: ")


@pytest.mark.parametrize("kind", [NormLayer, FailingLayer])
@both_modes
def test_the_model_is_left_as_it_was(mode: Checkpointing, kind: type[Layer]) -> None:
    model = model_of(kind, Layer)
    model.layers[1].eval()
    model.first.weight.grad = torch.full_like(model.first.weight, 5.0)
    model.first.register_forward_hook(lambda module, arguments, output: None)
    before = snapshot(model)
    run(model, mode)
    after = snapshot(model)
    assert before.keys() == after.keys()
    for name, value in before.items():
        same = torch.equal(value, after[name]) if isinstance(value, Tensor) else value == after[name]
        assert same, name


def snapshot(model: nn.Module) -> dict[str, Any]:
    found: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            found[f"{path}:{name}"] = list(value.items()) if isinstance(value, dict) and "hooks" in name else value
    found.update({f"{name}.grad": p.grad for name, p in model.named_parameters() if p.grad is not None})
    found.update({name: tensor.clone() for name, tensor in model.state_dict().items()})
    return {name: value for name, value in found.items() if name.rpartition(":")[2] not in TENSOR_HOLDERS}


TENSOR_HOLDERS = ("_parameters", "_buffers", "_modules")


def test_the_model_is_left_as_it_was_when_the_body_raises() -> None:
    norm = nn.BatchNorm1d(WIDTH)
    model = nn.Sequential(norm)

    def spoil() -> None:
        with left_as_found(model):
            nn.init.ones_(norm.get_buffer("running_mean"))
            norm.register_buffer("extra", torch.zeros(1))
            raise KeyError("spoilt")

    with pytest.raises(KeyError, match="spoilt"):
        spoil()
    assert not norm.get_buffer("running_mean").any()
    assert not hasattr(norm, "extra")


def test_checkpointing_that_was_on_is_off_in_the_reference_and_on_again_afterwards() -> None:
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
    assert loss_of({"loss": torch.tensor(2.0), "logits": first}) == 2.0


def test_an_output_without_a_gradient_has_no_loss() -> None:
    with pytest.raises(ValueError, match="no loss and no float tensor"):
        loss_of((torch.ones(2), None))
