"""A plan fits, costs the least time, keeps what it promises on the real model, and is undone."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from ckpt_surgery import DoesNotFitError, PlanningError, SurgeryError, explain, plan, wrap_blocks
from ckpt_surgery.distributed import fuse_loss
from ckpt_surgery.errors import CkptSurgeryError
from ckpt_surgery.measure.arguments import call_arguments
from ckpt_surgery.measure.loss import loss_of
from ckpt_surgery.measure.step import own_copy
from ckpt_surgery.planning.choices import PlanChoice
from ckpt_surgery.planning.plan import Plan, memory_bytes
from ckpt_surgery.planning.states import state_bytes
from ckpt_surgery.planning.step_meter import run_metered
from ckpt_surgery.planning.training import Optimizer
from ckpt_surgery.tiny import model_classes, tiny_model
from tests.zoo.tiny_models import gpt_bigcode, llama, tokens

pytestmark = pytest.mark.torch

NAMES = (
    "BertForMaskedLM",
    "T5ForConditionalGeneration",
    "ViTForImageClassification",
    "WhisperForConditionalGeneration",
)


def released(name: str) -> tuple[nn.Module, dict[str, Any]]:
    entry = model_classes()[name]
    tiny = tiny_model(entry.load(), entry.config_class(entry.model_type))
    return tiny.model.train(), tiny.inputs


def bounds(model: nn.Module, inputs: Any) -> tuple[int, int]:
    """Return the peaks with every block checkpointed and with none, AdamW's state included."""
    states = state_bytes(model.parameters(), Optimizer.ADAMW)
    most = explain(model, inputs, device="H100").peak_bytes + states
    with wrap_blocks(model):
        return explain(model, inputs, device="H100").peak_bytes + states, most


def measured(model: nn.Module, inputs: Any) -> int:
    arguments = call_arguments({name: own_copy(value) for name, value in inputs.items()})
    kept = run_metered(model, arguments, loss_of).kept_bytes
    model.zero_grad()
    return kept


def checked(made: Plan, model: nn.Module, inputs: Any) -> None:
    """Assert that the plan fits, and that the real model keeps its promise and its gradients."""
    assert made.explanation.peak_bytes == made.chosen.peak_bytes <= made.memory
    torch.manual_seed(0)
    loss_of(model(**inputs)).backward()  # type: ignore[no-untyped-call]
    before = {name: parameter.grad for name, parameter in model.named_parameters()}
    attributes = {name: dict(vars(module)) for name, module in model.named_modules()}
    model.zero_grad()
    surgery = made.apply(model)
    assert surgery is not None
    assert measured(model, inputs) <= made.chosen.kept_bytes
    torch.manual_seed(0)
    loss_of(model(**inputs)).backward()  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == (before[name] is None)
        gradient = before[name]
        assert parameter.grad is None or (
            gradient is not None and torch.allclose(parameter.grad, gradient, rtol=1e-5, atol=1e-7)
        )
    surgery.undo()
    model.zero_grad()
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == attributes


@pytest.mark.parametrize("build", [llama, gpt_bigcode])
@pytest.mark.parametrize("share", [0.0, 0.6])
def test_a_plan_fits_and_no_faster_one_does(build: Any, share: float) -> None:
    model, inputs = build(6), tokens(16)
    least, most = bounds(model, inputs)
    made = plan(model, inputs, int(least + share * (most - least)), offload=False, changes=False, save=False)
    (blocks,) = made.stacks.values()
    number = sum(block in made.chosen.choice.checkpointed for block in blocks)
    assert 0 < number <= len(blocks) == 6
    faster = wrap_blocks(model, first=number - 1)
    states = state_bytes(model.parameters(), Optimizer.ADAMW)
    assert explain(model, inputs, device="H100").peak_bytes + states > made.memory
    faster.undo()
    checked(made, model, inputs)


@pytest.mark.both
@pytest.mark.parametrize("name", NAMES)
def test_plans_for_released_models(name: str) -> None:
    model, inputs = released(name)
    least, most = bounds(model, inputs)
    if least < most:
        checked(plan(model, inputs, (least + most) // 2, offload=False, changes=False, save=False), model, inputs)


def test_a_budget_that_needs_nothing_changes_nothing() -> None:
    model, inputs = llama(), tokens()
    made = plan(model, inputs, "1GB")
    assert (made.is_needed, made.code, made.apply(model)) == (False, "", None)
    assert made.chosen.extra_seconds == 0.0
    assert made.explanation.peak_bytes <= 10**9


def test_a_budget_that_cannot_be_met_says_what_is_missing() -> None:
    model, inputs = llama(), tokens()
    least, _ = bounds(model, inputs)
    with pytest.raises(PlanningError, match=r"does not fit into .* MiB: at the least a step needs .* more"):
        plan(model, inputs, least - 1, offload=False, changes=False, save=False)


def test_offload_makes_room_for_less() -> None:
    model, inputs = llama(8), tokens(64)
    least, _ = bounds(model, inputs)
    made = plan(model, inputs, least - 1, changes=False, save=False)
    assert made.chosen.choice.offload
    assert made.code.endswith('offload="cpu")')
    assert made.chosen.peak_bytes < least


def test_a_surgery_is_left_out_of_account_and_alone() -> None:
    model, inputs = llama(), tokens()
    expected = plan(model, inputs, "1GB")
    surgery = wrap_blocks(model)
    assert plan(model, inputs, "1GB") == expected
    assert all(surgery.checkpoints(block) for stack in surgery.stacks for block in stack.blocks)


def test_the_front_goes_from_fast_to_small() -> None:
    model, inputs = llama(6), tokens(16)
    least, most = bounds(model, inputs)
    made = plan(model, inputs, (least + most) // 2, offload=False, changes=False, save=False)
    seconds = [row.extra_seconds for row in made.front]
    kept = [row.kept_bytes for row in made.front]
    assert seconds == sorted(seconds)
    assert kept == sorted(kept, reverse=True)
    assert made.chosen in made.front
    assert made.step_seconds > made.chosen.extra_seconds > 0


def long_texts(vocabulary: int, width: int) -> tuple[Any, dict[str, Any]]:
    """Build a Llama and a long text: the loss weighs most with a large vocabulary, the MLPs if they are wide."""
    sizes = {"hidden_size": 16, "intermediate_size": width, "num_attention_heads": 2, "vocab_size": vocabulary}
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=3, use_cache=False, **sizes)).train()
    ids = torch.arange(96).unsqueeze(0) % 50
    return model, {"input_ids": ids, "labels": ids.clone()}


def test_a_large_vocabulary_takes_a_fused_loss() -> None:
    model, inputs = long_texts(3000, 32)
    least, _ = bounds(model, inputs)
    fused = plan(model, inputs, least - 1, offload=False, save=False)
    assert fused.chosen.choice.fused_loss
    assert "fuse_loss(model)" in fused.code
    checked(fused, model, inputs)


def test_wide_mlps_are_tiled() -> None:
    model, inputs = long_texts(64, 512)
    with fuse_loss(model), wrap_blocks(model):
        least = explain(model, inputs, optimizer="adamw", device="H100").peak_bytes
    tiled = plan(model, inputs, least - 1, offload=False, save=False)
    assert tiled.chosen.choice.tiled == tuple(f"model.layers.{number}.mlp" for number in range(3))
    assert "\ntile_mlp([block.mlp for block in model.model.layers], shard_size=16)" in tiled.code
    checked(tiled, model, inputs)
    exec(tiled.code, {"model": model})


def test_changes_that_are_not_wanted_or_cannot_be_are_not_made() -> None:
    model, inputs = long_texts(3000, 32)
    least, _ = bounds(model, inputs)
    with pytest.raises(DoesNotFitError):
        plan(model, inputs, least - 1, offload=False, changes=False, save=False)
    own = plan(model, inputs, least + 1000, offload=False, loss=lambda output: output.logits.sum())
    assert not any(row.choice.fused_loss for row in own.front)
    model.loss_function = lambda **given: given["logits"].float().mean()
    least, most = bounds(model, inputs)
    made = plan(model, inputs, (least + most) // 2, offload=False, save=False)
    assert not any(row.choice.fused_loss for row in made.front)
    assert "makes its logits for mean" in made.unavailable["fuse_loss"]


def test_what_was_done_is_taken_back_where_the_rest_fails() -> None:
    model, _ = long_texts(64, 32)
    stacks = {"none": ("none.0", "none.1")}
    choice = PlanChoice(stacks, {"none.0": ()}, fused_loss=True, tiled=("model.layers.1.mlp",), shard_size=8)
    attributes = {name: dict(vars(module)) for name, module in model.named_modules()}
    with pytest.raises(SurgeryError):
        choice.apply(model)
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == attributes


@pytest.mark.parametrize(
    ("memory", "expected"), [("80GB", 80 * 10**9), ("80 GiB", 80 * 2**30), ("1.5tb", 1.5 * 10**12), (7, 7)]
)
def test_a_budget_with_its_unit(memory: int | str, expected: float) -> None:
    assert memory_bytes(memory) == expected


@pytest.mark.parametrize("memory", ["80", "GB", "-1GB", "0GB", "", 0, -5, True, 1.5, None])
def test_a_budget_without_a_unit_or_a_size_is_refused(memory: Any) -> None:
    with pytest.raises(PlanningError, match="with its unit"):
        memory_bytes(memory)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": "llama"}, "the model is of type str: give a torch.nn.Module"),
        ({"inputs": 5}, "the inputs are of type int: give a dictionary"),
        ({"inputs": {"none": 1}}, "a step of LlamaForCausalLM cannot run on shapes"),
        ({"loss": "mean"}, "a step of LlamaForCausalLM cannot run on shapes: TypeError: 'str' object"),
        ({"ranks": 0}, "ranks is 0: give a whole number of 1 or more"),
        ({"ranks": 2, "sharding": "all"}, "no sharding is called 'all': give one of fsdp"),
        ({"device": 5}, "no device is called 5: give one of T4"),
        ({"optimizer": "adam"}, "no state is known of the optimizer 'adam': give one of none, sgd"),
        ({"offload": "no"}, "offload is 'no': give True or False"),
        ({"changes": 0}, "changes is 0: give True or False"),
        ({"save": "attention"}, "save is 'attention': give True or False"),
    ],
    ids=str,
)
def test_what_cannot_be_planned_for_is_one_sentence(options: dict[str, Any], said: str) -> None:
    arguments = {"model": llama(2), "inputs": tokens(), "memory": "1GB", **options}
    with pytest.raises(CkptSurgeryError) as refused:
        plan(**arguments)
    assert said in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
    if options.keys().isdisjoint({"offload", "changes", "save"}):
        with pytest.raises(CkptSurgeryError, match=re.escape(said)):
            explain(**{"model": llama(2), "inputs": tokens(), **options})
