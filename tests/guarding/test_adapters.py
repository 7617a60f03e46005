"""Adapters of PEFT: wrapped and guarded before or after they are added, merged, saved, loaded, switched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

import peft
import torch
from peft.tuners.lora import preprocess_loraga
from torch import Tensor

from ckpt_surgery import guard, wrap_blocks
from ckpt_surgery.guarding.takeover import Takeover, TakeoverOptions
from tests.zoo.tiny_models import llama, tokens

pytestmark = [pytest.mark.both, pytest.mark.torch]

LAYERS = 3
orders = pytest.mark.parametrize("order", ["wrapped before", "wrapped after"])


def adapter(rank: int = 2) -> Any:
    return peft.LoraConfig(r=rank, target_modules=["q_proj", "v_proj"], init_lora_weights=False)


def adapted(order: str | None) -> tuple[Any, Any]:
    """Build a model with an adapter; wrap it if asked to."""
    base = llama(LAYERS, use_cache=False)
    surgery = wrap_blocks(base) if order == "wrapped before" else None
    torch.manual_seed(1)
    model = peft.get_peft_model(base, adapter())
    if order == "wrapped after":
        surgery = wrap_blocks(model)
    return model, surgery


def train(model: Any, steps: int = LAYERS + 1) -> tuple[list[float], dict[str, Tensor]]:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    losses = []
    for _ in range(steps):
        loss = model(**tokens()).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        with torch.no_grad():
            model(**tokens())
    return losses, {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


def hooked(kind: str) -> tuple[Any, dict[str, Any]]:
    """Build an adapter with hooks for the forward alone, and the arguments of a call."""
    ids = tokens()["input_ids"]
    targets: dict[str, Any] = {"task_type": "CAUSAL_LM", "r": 2, "target_modules": ["q_proj"]}
    if kind == "Poly":
        return peft.PolyConfig(n_tasks=2, n_skills=2, n_splits=2, **targets), {"task_ids": torch.tensor([0, 1])}
    return peft.LoraConfig(alora_invocation_tokens=ids[0, 1:3].tolist(), init_lora_weights=False, **targets), {}


@orders
@pytest.mark.parametrize("kind", ["Poly", "activated LoRA"])
def test_forward_only_hooks_of_peft_are_there_in_the_recompute(kind: str, order: str) -> None:
    def trained(order: str | None) -> tuple[list[list[Tensor]], tuple[Any, ...]]:
        base, (config, inputs) = llama(LAYERS, use_cache=False), hooked(kind)
        if order == "wrapped before":
            wrap_blocks(base)
        torch.manual_seed(1)
        model = peft.get_peft_model(base, config).train()
        if order == "wrapped after":
            wrap_blocks(model)
        gradients = []
        with guard(model, on_fault="collect") as watching:
            for _ in range(LAYERS):
                model(**tokens(), **inputs).loss.backward()
                gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
            report = watching.report()
        return gradients, (report.proved, report.faults)

    (expected, _), (gradients, seen) = trained(None), trained(order)
    assert gradients[0]
    assert all(torch.equal(*each) for a, b in zip(gradients, expected, strict=True) for each in zip(a, b, strict=True))
    assert seen == (LAYERS, ())


def test_activated_lora_trains_as_under_the_librarys_checkpointing() -> None:
    def norms(model: Any) -> list[float]:
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
        norms = []
        for _ in range(2):
            model.train()(**tokens()).loss.backward()
            norms.append(sum(p.grad.norm().item() for p in model.parameters() if p.grad is not None))
        return norms

    def made() -> Any:
        torch.manual_seed(0)
        return peft.get_peft_model(llama(LAYERS, use_cache=False), hooked("activated LoRA")[0])

    expected = norms(made())
    takeover = Takeover(TakeoverOptions(), lambda _: None)
    takeover.install()
    try:
        assert norms(made()) == expected
    finally:
        takeover.remove()
    assert [report.faults for each in takeover.trained if (report := each.report)] == [()]


def test_lora_ga_takes_the_same_gradients_before_training_as_unguarded() -> None:
    def gradient(watched: bool) -> Tensor:
        base = llama(LAYERS, use_cache=False)
        start: dict[str, Any] = {"init_lora_weights": "lora_ga", "lora_ga_config": peft.LoraGAConfig()}
        config = peft.LoraConfig(r=2, target_modules=["q_proj"], **start)
        watching = guard(base) if watched else None
        preprocess_loraga(base, config, lambda: base.train()(**tokens()).loss.backward())
        if watching is not None:
            assert watching.report().steps == 1
        taken: Tensor = base.model.layers[0].self_attn.q_proj._peft_loraga_grad
        return taken

    assert torch.equal(gradient(True), gradient(False))


@orders
def test_training_is_that_of_a_run_without_and_is_proved(order: str) -> None:
    bare_losses, bare = train(adapted(None)[0])
    model, _ = adapted(order)
    with guard(model, on_fault="raise", patience=2) as watching:
        losses, trained = train(model)
        report = watching.report()
    assert (losses, list(trained)) == (bare_losses, list(bare))
    assert all(torch.equal(trained[name], bare[name]) for name in bare)
    assert (report.proved, report.steps) == (LAYERS, LAYERS + 1)
    assert [row.counts for row in report.blocks] == [(1, 1)] * LAYERS


@orders
def test_saving_loading_merging_and_undoing_are_as_without_it(order: str, tmp_path: Path) -> None:
    bare, (model, surgery) = adapted(None)[0], adapted(order)
    train(bare)
    train(model)
    bare.save_pretrained(tmp_path / "bare")
    model.save_pretrained(tmp_path / "wrapped")
    names = sorted(path.name for path in (tmp_path / "bare").iterdir())
    assert sorted(path.name for path in (tmp_path / "wrapped").iterdir()) == names
    weights = "adapter_model.safetensors"
    assert (tmp_path / "wrapped" / weights).read_bytes() == (tmp_path / "bare" / weights).read_bytes()
    assert list(model.state_dict()) == list(bare.state_dict())
    loaded = peft.PeftModel.from_pretrained(llama(LAYERS, use_cache=False), tmp_path / "wrapped", is_trainable=True)
    with guard(loaded, on_fault="raise") as watching:
        wrap_blocks(loaded)
        assert train(loaded, 1)[0] == train(bare, 1)[0]
        assert watching.report().proved == 1
    merged, expected = model.merge_and_unload(), bare.merge_and_unload()
    assert list(merged.state_dict()) == list(expected.state_dict())
    surgery.undo()
    assert not any("forward" in vars(module) for module in merged.modules())


def test_switching_adapters_between_steps_trains_the_active_one() -> None:
    def run(wrapped: bool) -> tuple[list[float], bool]:
        model, _ = adapted("wrapped after" if wrapped else None)
        torch.manual_seed(2)
        model.add_adapter("second", adapter(4))
        watching = guard(model, on_fault="raise") if wrapped else None
        losses = train(model, 2)[0]
        model.set_adapter("second")
        losses += train(model, 2)[0]
        with model.disable_adapter(), torch.no_grad():
            losses.append(model(**tokens()).loss.item())
        if watching is not None:
            assert watching.report().proved == LAYERS
        return losses, any("second" in name for name, p in model.named_parameters() if p.requires_grad)

    assert run(True) == run(False)


def test_an_adapter_that_is_not_the_active_one_is_reported() -> None:
    model, _ = adapted("wrapped after")
    torch.manual_seed(2)
    model.add_adapter("second", adapter())
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("second" in name)  # trains what is not active
    for parameter in model.get_input_embeddings().parameters():
        parameter.requires_grad_()
    with guard(model, on_fault="collect", patience=2) as watching:
        for _ in range(2):
            model(**tokens()).loss.backward()
        (fault,) = watching.report().faults
    assert all("second" in name for name in fault.subjects)
    assert len(fault.subjects) == 4 * LAYERS
