"""A model with a fused loss has its loss and gradients, never its logits, and is restored afterwards."""

from __future__ import annotations

import copy
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from threading import Barrier
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from torch import Tensor, nn

from ckpt_surgery import SurgeryError, SurgeryWarning, explain, wrap_blocks
from ckpt_surgery.distributed import fuse_loss
from ckpt_surgery.long_sequences.lazy_logits import LazyLogits
from tests.zoo.tiny_models import llama, llama_config, tokens

pytestmark = [pytest.mark.both, pytest.mark.torch]


def step(model: Any, **inputs: Any) -> tuple[float, dict[str, Any]]:
    model.zero_grad()
    loss = model(**inputs).loss
    loss.backward()
    return loss.item(), {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def same(ours: tuple[float, dict[str, Any]], theirs: tuple[float, dict[str, Any]]) -> bool:
    close = all(torch.allclose(ours[1][name], gradient, rtol=1e-4, atol=1e-6) for name, gradient in theirs[1].items())
    return ours[0] == pytest.approx(theirs[0]) and close


def inputs() -> dict[str, Any]:
    given = tokens(3)
    given["labels"] = given["input_ids"].clone()
    given["labels"][0, :4] = -100
    return given


@pytest.mark.parametrize(
    "options", [{}, {"num_items_in_batch": 7}, {"num_items_in_batch": torch.tensor(7)}, {"shift_labels": None}]
)
def test_loss_and_gradients_are_those_of_the_model(options: dict[str, Any]) -> None:
    model = llama()
    expected = step(model, **inputs(), **options)
    with fuse_loss(model):
        assert same(step(model, **inputs(), **options), expected)
        wrap_blocks(model)
        assert same(step(model, **inputs(), **options), expected)


def test_a_head_with_a_bias_and_labels_by_position() -> None:
    model = llama()
    model.lm_head.bias = nn.Parameter(torch.randn(model.lm_head.out_features, dtype=torch.float64))
    given = inputs()
    expected = step(model, **given)
    with fuse_loss(model):
        assert same(step(model, **given), expected)
        loss = model(given["input_ids"], None, None, None, None, given["labels"]).loss
    assert loss.item() == pytest.approx(expected[0])


def test_logits_are_never_made_and_there_when_used() -> None:
    config = llama_config(2)
    config.vocab_size = 5000
    model = transformers.LlamaForCausalLM(config).train()
    before = explain(model, tokens(8))
    expected = model(**tokens(2)).logits
    with fuse_loss(model) as change:
        assert explain(model, tokens(8)).peak_bytes < 0.6 * before.peak_bytes
        logits = model(**tokens(2)).logits
    change.check()
    assert type(logits) is LazyLogits
    assert logits.shape == expected.shape
    assert torch.equal(logits.detach(), expected.detach())


@pytest.mark.parametrize("off", ["evaluation", "no gradients", "no labels"])
def test_elsewhere_nothing_changes(off: str) -> None:
    model, given = llama(), inputs()
    if off == "evaluation":
        model.eval()
    if off == "no labels":
        del given["labels"]
    with torch.set_grad_enabled(off != "no gradients"):
        expected = model(**given)
        with fuse_loss(model):
            output = model(**given)
    assert type(output.logits) is Tensor
    assert torch.equal(output.logits, expected.logits)
    assert (output.loss is None) == (expected.loss is None)


def test_it_is_undone_once_and_leaves_nothing() -> None:
    model = llama()
    attributes = {name: dict(vars(module)) for name, module in model.named_modules()}
    keys = list(model.state_dict())
    change = fuse_loss(model)
    assert list(model.state_dict()) == keys
    assert fuse_loss(model) is change
    change.undo()
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == attributes
    with pytest.raises(SurgeryError, match="undone before"):
        change.undo()


def test_what_another_has_fused_is_not_fused_again() -> None:
    model = llama()
    with fuse_loss(model), pytest.raises(SurgeryError, match="the forward of its head is not that of its class"):
        fuse_loss(nn.ModuleList([model]))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
def test_a_copy_is_fused_and_undone_by_itself(duplicate: Any) -> None:
    model = llama()
    expected = step(model, **inputs())
    change = fuse_loss(model)
    other = duplicate(model)
    change.undo()
    assert type(model(**inputs()).logits) is Tensor
    assert same(step(other, **inputs()), expected)
    of_copy = fuse_loss(other)
    assert (of_copy.fused_losses, change.fused_losses) == (1, 0)
    of_copy.undo()
    assert type(other(**inputs()).logits) is Tensor
    assert [set(vars(module)) for module in other.modules()] == [set(vars(module)) for module in model.modules()]


def test_undo_between_forward_and_backward_changes_nothing() -> None:
    model = llama()
    expected = step(model, **inputs())
    model.zero_grad()
    with fuse_loss(model):
        outputs = model(**inputs())
    outputs.loss.backward()
    assert same((outputs.loss.item(), {name: p.grad for name, p in model.named_parameters()}), expected)
    assert outputs.logits.argmax(-1).shape == inputs()["input_ids"].shape


def test_gradients_of_gradients_are_those_of_the_model() -> None:
    def penalty(fused: bool) -> list[Tensor]:
        model = llama()
        model.config._attn_implementation = "eager"  # the other kernels have no second derivative
        model.lm_head.weight = model.model.embed_tokens.weight
        with fuse_loss(model) if fused else nullcontext():
            loss = model(**inputs()).loss
        first = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        together = torch.stack([each.square().sum() for each in first]).sum()
        return list(torch.autograd.grad(together, list(model.parameters())))

    for ours, theirs in zip(penalty(True), penalty(False), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)  # the model's loss is in float32


@pytest.mark.parametrize("items", [None, 7])
def test_a_loss_outside_of_the_model_is_fused_if_its_items_are_counted(items: int | None) -> None:
    # The Trainer of transformers keeps the labels, and gives `num_items_in_batch`, where it smooths them.
    model, given = llama(), inputs()
    labels = given.pop("labels")

    def smoothed(**options: Any) -> tuple[float, dict[str, Any]]:
        model.zero_grad()
        logits = model(**given, **options).logits
        loss = transformers.trainer_pt_utils.LabelSmoother(0.1)({"logits": logits}, labels, shift_labels=True)
        loss.backward()
        return loss.item(), {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    expected = smoothed()
    with fuse_loss(model) as change:
        assert same(smoothed(num_items_in_batch=items), expected)
    assert (change.fused_losses, change.made_logits) == (int(items is not None), {})


def test_models_without_a_head_that_can_be_fused_are_refused() -> None:
    with pytest.raises(SurgeryError, match="Linear cannot be fused: Linear: it has no output embeddings"):
        fuse_loss(nn.Linear(2, 2))
    with pytest.raises(SurgeryError, match="of type str"):
        fuse_loss("model")  # type: ignore[arg-type]


class Own(transformers.LlamaForCausalLM):  # type: ignore[misc]
    """A Llama that caps its logits, and computes its loss itself."""

    def forward(self, input_ids: Any, labels: Any, **_: Any) -> Any:
        logits = 2 * torch.tanh(self.lm_head(self.model(input_ids).last_hidden_state) / 2)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return transformers.modeling_outputs.CausalLMOutput(loss=loss, logits=logits)


def test_what_a_model_does_with_its_logits_is_done() -> None:
    model = Own(llama_config()).double().train()
    expected = step(model, **inputs())
    with fuse_loss(model) as change:
        assert same(step(model, **inputs()), expected)
    change.check()


def test_a_loss_that_needs_logits_gets_them_and_is_named() -> None:
    model = llama()
    model.loss_function = lambda **given: given["logits"].float().mean()
    with fuse_loss(model) as change, pytest.raises(SurgeryError, match="computed no loss from the logits"):
        change.check()
    expected = step(model, **inputs())
    with fuse_loss(model) as change:
        with pytest.warns(SurgeryWarning, match="makes its logits for mean"):
            assert same(step(model, **inputs()), expected)
        with warnings.catch_warnings():
            warnings.simplefilter("error", SurgeryWarning)
            assert same(step(model, **inputs()), expected)
    assert change.made_logits == {"mean": 2}
    assert "logits were made for mean: 2 x" in str(change)
    with pytest.raises(SurgeryError, match="makes its logits for mean"):
        change.check()


def test_what_a_loss_adds_to_the_fused_one_is_named() -> None:
    # A penalty makes the logits, and a look at them after the forward is no part of the loss.
    def with_penalty(logits: Tensor, labels: Tensor, vocab_size: int, **_: Any) -> Tensor:
        loss = nn.functional.cross_entropy(logits.view(-1, vocab_size), labels.view(-1))
        return loss + 0.1 * logits.pow(2).mean()

    model = llama()
    own = model.loss_function
    model.loss_function = with_penalty
    expected = step(model, **inputs())
    with fuse_loss(model) as change, pytest.warns(SurgeryWarning, match="for pow.* this part of the loss"):
        assert same(step(model, **inputs()), expected)
    assert (change.made_logits, change.fused_losses) == ({"pow": 1}, 1)
    model.loss_function = own
    with fuse_loss(model) as change:
        model(**inputs()).logits.argmax(-1)
    assert change.made_logits == {}


def test_logits_of_a_step_are_refused_after_the_optimizer() -> None:
    model = llama()
    with fuse_loss(model):
        outputs = model(**inputs())
        outputs.loss.backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        with pytest.raises(SurgeryError, match=r"use outputs\.logits before that"):
            outputs.logits.argmax(-1)


def test_threads_do_not_see_the_labels_of_each_other() -> None:
    model = llama()
    together = Barrier(2)
    model.model.register_forward_pre_hook(lambda *_: (together.wait(60), None)[1])
    with fuse_loss(model) as change:
        for labels in ({}, inputs()):
            given = [inputs(), {"input_ids": inputs()["input_ids"], **labels}]
            with ThreadPoolExecutor(2) as pool:
                outputs = list(pool.map(lambda each: model(**each), given))
            kinds = [type(output.logits) is Tensor for output in outputs]
            assert kinds == [False, not labels]
            assert not change.state.running


def test_a_head_that_is_replaced_later_is_named_once() -> None:
    model = llama()
    with fuse_loss(model):
        model.resize_token_embeddings(72)
        with pytest.warns(SurgeryWarning, match="has another head"):
            step(model, **inputs())
        with warnings.catch_warnings():
            warnings.simplefilter("error", SurgeryWarning)
            step(model, **inputs())
    with fuse_loss(model) as change:
        step(model, **inputs())
    assert change.fused_losses == 1


def test_it_outlives_another_wrap_blocks() -> None:
    model = llama()
    surgery = wrap_blocks(model)
    change = fuse_loss(model)
    kept = explain(model, inputs()).kept_bytes
    wrap_blocks(model, every_n=2)
    step(model, **inputs())
    surgery.undo()
    step(model, **inputs())
    assert change.fused_losses == 2
    change.undo()
    assert all("forward" not in vars(module) for module in model.modules())
    wrap_blocks(model)
    assert explain(model, inputs()).kept_bytes > kept
