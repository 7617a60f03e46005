"""`explain` says to the byte what a real step keeps, and only reads the model."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from ckpt_surgery import Explanation, PlanningError, explain, wrap_blocks
from ckpt_surgery.measure.step import run_step
from ckpt_surgery.planning.allocations import AllocationKind, StepPhase
from ckpt_surgery.runtime.blocks.discovery import find_blocks
from tests.zoo.tiny_models import gpt_bigcode, llama, llama_config, tokens

pytestmark = [pytest.mark.both, pytest.mark.torch]


def measured(model: nn.Module, inputs: dict[str, Any]) -> int:
    """Return the bytes that a real step of the model keeps as it is."""
    blocks = {block.name: block.module for block in find_blocks(model)}
    record = run_step(model, inputs, blocks=blocks, checkpointing="non_reentrant", switch=lambda *_: None)
    assert record.error is None
    return record.memory.kept


@pytest.mark.parametrize("build", [llama, gpt_bigcode])
def test_a_wrapped_model_is_explained_as_it_is(build: Any) -> None:
    model, inputs = build(), tokens()
    plain = explain(model, inputs)
    assert (plain.checkpointed, plain.kept_bytes) == (0, measured(model, inputs))
    surgery = wrap_blocks(model)
    wrapped = explain(model, inputs)
    assert wrapped.checkpointed == wrapped.blocks > 0
    assert wrapped.kept_bytes == measured(model, inputs) < plain.kept_bytes / 2
    assert wrapped.peak_bytes < plain.peak_bytes
    surgery.undo()
    assert explain(model, inputs) == plain


def test_a_cuda_device_holds_the_inputs_and_workspace() -> None:
    plain, told, other = (explain(llama(), tokens(), device=device) for device in (None, "H100", "MI300X"))
    assert (plain.workspace_bytes, other.workspace_bytes) == (plain.input_bytes, other.input_bytes) == (0, 0)
    assert (told.workspace_bytes, told.input_bytes) == (2 * 33 * 2**20, tokens()["input_ids"].nbytes)
    assert told.peak_bytes == told.always_bytes + sum(told.peak.by_kind.values())
    assert told.peak_bytes > plain.peak_bytes + told.workspace_bytes + told.input_bytes
    assert all(holder.bytes % (512 * holder.count) == 0 for holder in told.peak.holders)  # as CUDA's allocator has it
    assert other.peak_bytes == plain.peak_bytes
    assert told.kept_bytes == plain.kept_bytes
    assert re.search(r"\n  workspace of cuBLAS +66.0 MiB\n", str(told))
    assert "workspace of cuBLAS" not in str(plain)
    assert "workspace of cuBLAS" in told.to_html()


def test_what_is_offloaded_is_not_on_the_device() -> None:
    model, inputs = llama(8), tokens(32)
    surgery = wrap_blocks(model)
    kept = explain(model, inputs).kept_bytes
    surgery = wrap_blocks(model, offload="cpu")
    told = explain(model, inputs)
    block_input = inputs["input_ids"].numel() * 16 * 8
    assert told.kept_bytes == kept - 5 * block_input  # the last stays, and two are on their way
    assert surgery.stats is not None
    assert surgery.stats.tensors == 0


def test_the_model_is_only_read() -> None:
    model, inputs = llama(attention_dropout=0.1), tokens()
    model(**inputs).loss.backward()
    wrap_blocks(model)
    values = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    attributes = {name: dict(vars(module)) for name, module in model.named_modules()}
    generator = torch.get_rng_state()
    explain(model, inputs)
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(tensor, values[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is gradients[name] for name, parameter in model.named_parameters())
    for name, module in model.named_modules():
        now = vars(module)
        assert now.keys() == attributes[name].keys()
        assert all(now[key] is value for key, value in attributes[name].items())
    assert list(inputs) == ["input_ids", "labels"]


def test_what_lives_through_the_step_is_counted_once() -> None:
    model = llama(tie_word_embeddings=True)
    told = explain(model, tokens())
    whole = sum(parameter.numel() * 8 for parameter in model.parameters())
    assert told.parameter_bytes == told.gradient_bytes == whole
    assert told.buffer_bytes == sum(buffer.numel() * buffer.itemsize for buffer in model.buffers())
    assert sum(told.peak.by_kind.values()) == told.peak_bytes - told.parameter_bytes - told.buffer_bytes


def test_frozen_parameters_get_no_gradient() -> None:
    model = llama()
    model.model.requires_grad_(False)
    told = explain(model, tokens())
    assert told.gradient_bytes == model.lm_head.weight.numel() * 8
    assert told.kept_bytes == measured(model, tokens())


def test_the_peak_is_where_the_logits_are() -> None:
    config = llama_config(2)
    config.vocab_size = 5000
    model = transformers.LlamaForCausalLM(config)
    wrap_blocks(model)
    told = explain(model, tokens(8))
    assert told.peak.phase in (StepPhase.FORWARD, StepPhase.BACKWARD)
    assert told.peak.holders[0].shape[-1] == 5000
    assert told.holders[0].shape[-1] == 5000
    assert told.holders[0].module == ""
    assert told.holders[0].bytes / told.kept_bytes > 0.5


def test_the_explanation_as_json() -> None:
    told = explain(llama(), tokens())
    data = json.loads(told.to_json())
    assert data["schema_version"] == 1
    assert data["kept_bytes"] == told.kept_bytes
    assert data["peak_bytes"] == told.peak_bytes
    assert data["timeline"]["bytes"].keys() == {kind.value for kind in AllocationKind}


def test_any_module_with_any_inputs_and_a_loss_of_ones_own() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4))
    pictures, targets = torch.rand(2, 3, 8, 8), torch.tensor([1, 3])
    model(pictures)
    steps = model.state_dict()["1.num_batches_tracked"]
    before = int(steps)

    def loss(output: Tensor) -> Tensor:
        return functional.cross_entropy(output, targets)

    told = explain(model, pictures, loss=loss)
    record = run_step(model, {"input": pictures}, blocks={}, loss=loss, switch=lambda *_: None)
    assert told.kept_bytes == record.memory.kept
    assert steps == before


def test_a_model_without_data_is_explained_too() -> None:
    from ckpt_surgery.planning.shapes import ShapesOnly

    with ShapesOnly():
        model = transformers.LlamaForCausalLM(llama_config())
    told = explain(model, tokens())
    assert isinstance(told, Explanation)
    assert told.kept_bytes == explain(llama().float(), tokens()).kept_bytes


def test_a_step_that_fails_says_why() -> None:
    with pytest.raises(PlanningError, match=r"a step of LlamaForCausalLM cannot run on shapes .*: ValueError"):
        explain(llama(), {"attention_mask": torch.ones(1, 4, dtype=torch.long)})
    with pytest.raises(PlanningError, match=r"loss needs no gradient|holds no loss"):
        explain(nn.Linear(4, 4).requires_grad_(False), torch.rand(1, 4))
