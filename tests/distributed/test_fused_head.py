"""A model with a fused loss has its loss and gradients, never its logits, and is given back as it was."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import torch.distributed as dist
import transformers
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore

from ckpt_surgery import SurgeryError, explain, wrap_blocks
from ckpt_surgery.distributed import fuse_loss
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


def test_labels_that_are_not_shifted_make_another_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama()
    expected = step(model, **inputs())
    monkeypatch.setattr(functional, "pad", lambda labels, *_, **__: labels.roll(1, -1).repeat(1, 2))
    with fuse_loss(model), pytest.raises((AssertionError, RuntimeError)):
        assert same(step(model, **inputs()), expected)


def test_logits_are_never_made_and_say_so() -> None:
    config = llama_config(2)
    config.vocab_size = 5000
    model = transformers.LlamaForCausalLM(config).train()
    before = explain(model, tokens(8))
    with fuse_loss(model):
        assert explain(model, tokens(8)).peak_bytes < 0.6 * before.peak_bytes
        logits = model(**tokens(2)).logits
    assert logits.shape[-1] == 5000
    assert logits.isnan().all()
    assert logits.untyped_storage().nbytes() == 4


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
    assert torch.equal(output.logits, expected.logits)
    assert (output.loss is None) == (expected.loss is None)


def test_it_is_undone_once_and_leaves_nothing() -> None:
    model = llama()
    attributes = {name: dict(vars(module)) for name, module in model.named_modules()}
    keys = list(model.state_dict())
    change = fuse_loss(model)
    assert list(model.state_dict()) == keys
    with pytest.raises(SurgeryError, match="has a forward of its own"):
        fuse_loss(model)
    change.undo()
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == attributes
    with pytest.raises(SurgeryError, match="undone before"):
        change.undo()


def test_models_that_do_something_else_are_refused() -> None:
    with pytest.raises(SurgeryError, match="Linear has no head"):
        fuse_loss(nn.Linear(2, 2))
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    masked = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=64, **sizes))
    with pytest.raises(SurgeryError, match="another loss than ForCausalLMLoss"):
        fuse_loss(masked)
    capped = transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(vocab_size=64, num_key_value_heads=1, head_dim=8, **sizes)
    ).train()
    with fuse_loss(capped), pytest.raises(SurgeryError, match="changes its logits before the loss"):
        capped(**tokens())


def test_a_model_that_computes_its_loss_elsewhere_is_refused() -> None:
    class Own(transformers.LlamaForCausalLM):  # type: ignore[misc]
        def forward(self, input_ids: Any, labels: Any) -> Any:
            logits = self.lm_head(self.model(input_ids).last_hidden_state)
            return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    own = Own(llama_config()).train()
    with fuse_loss(own), pytest.raises(SurgeryError, match="computes its loss in another way"):
        own(**{name: value for name, value in tokens().items() if name in ("input_ids", "labels")})
    assert own(**tokens()).isfinite()


@pytest.mark.parametrize("first", ["fuse_loss", "fully_shard"])
def test_under_fsdp_the_root_gathers_the_head(first: str) -> None:
    """One rank of one: FSDP2 frees and gathers parameters as among many."""
    model = llama().float()
    expected = step(model, **inputs())
    model.zero_grad()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    try:
        changed = fuse_loss(model) if first == "fuse_loss" else None
        for module in (*model.model.layers, model):
            fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
        with changed or fuse_loss(model):
            loss = model(**inputs()).loss
            loss.backward()
        assert loss.item() == pytest.approx(expected[0])
        assert torch.allclose(model.lm_head.weight.grad.to_local(), expected[1]["lm_head.weight"], atol=1e-6)
    finally:
        dist.destroy_process_group()
