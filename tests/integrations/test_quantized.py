"""Weights of 4 and 8 bits from bitsandbytes and torchao, with explain, wrap_blocks and verify."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

pytest.importorskip("bitsandbytes", reason="run `make integrations`")
pytest.importorskip("torchao", reason="run `make integrations`")

import bitsandbytes
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torchao.quantization import Int8WeightOnlyConfig, quantize_
from transformers import LlamaConfig, LlamaForCausalLM

from ckpt_surgery import explain, plan, verify, wrap_blocks
from ckpt_surgery.measure.loss import loss_of
from ckpt_surgery.planning.allocations import StepAllocations
from ckpt_surgery.planning.figures import Peak
from ckpt_surgery.planning.lora import add_lora
from ckpt_surgery.planning.step_meter import run_metered

pytestmark = pytest.mark.torch

RANK = 4
WIDTH, MLP = 64, 128


def llama(dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=MLP,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=100,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).to(dtype).train()


def inputs() -> dict[str, Tensor]:
    tokens = torch.randint(1, 100, (2, 32), generator=torch.Generator().manual_seed(1))
    return {"input_ids": tokens, "labels": tokens}


def with_adapters(model: Any) -> nn.Module:
    adapted: nn.Module = get_peft_model(model, LoraConfig(r=RANK, target_modules="all-linear"))
    return adapted


def by_bitsandbytes(dtype: torch.dtype) -> nn.Module:
    """Load the model with `load_in_4bit`: NF4, double quantization, adapters of PEFT."""
    model = llama(dtype)
    for name, layer in list(model.named_modules()):
        if type(layer) is nn.Linear and name != "lm_head":
            parent, _, own = name.rpartition(".")
            new = bitsandbytes.nn.Linear4bit(
                layer.in_features, layer.out_features, bias=False, compute_dtype=dtype, quant_type="nf4"
            )
            new.weight = bitsandbytes.nn.Params4bit(
                layer.weight.data, requires_grad=False, quant_type="nf4", compress_statistics=True, module=new
            )
            setattr(model.get_submodule(parent), own, new)
    model.to("cpu")  # which quantizes
    model.is_loaded_in_4bit = True  # PEFT looks at it
    return with_adapters(model)


def by_torchao(dtype: torch.dtype) -> nn.Module:
    model = llama(dtype)
    quantize_(model, Int8WeightOnlyConfig(), filter_fn=lambda layer, name: type(layer) is nn.Linear and "mlp" in name)
    model.requires_grad_(False)
    for layer in model.model.layers:
        layer.self_attn.requires_grad_(True)
    return model  # type: ignore[no-any-return]


makers = pytest.mark.parametrize("made", [by_bitsandbytes, by_torchao])


def gradients(model: nn.Module) -> list[Tensor]:
    model.zero_grad()
    model(**inputs()).loss.backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def step_of(model: nn.Module) -> StepAllocations:
    step = run_metered(model, ((), inputs()), loss_of)
    model.zero_grad()
    return step


@pytest.mark.parametrize("wrapped", [False, True], ids=["off", "on"])
def test_what_add_lora_predicts_is_what_peft_and_bitsandbytes_keep(wrapped: bool) -> None:
    theirs, ours = by_bitsandbytes(torch.bfloat16), llama(torch.bfloat16)
    add_lora(ours, RANK, nullcontext(), four_bits=True)
    if wrapped:
        for model in (theirs, ours):
            wrap_blocks(model, self_check="never")
    step, told, of_theirs = step_of(theirs), explain(ours, inputs()), explain(theirs, inputs())
    assert told.kept_bytes == of_theirs.kept_bytes == step.kept_bytes
    held = [each.parameter_bytes + each.buffer_bytes for each in (told, of_theirs)]
    assert held[0] == held[1]
    assert (told.forward_flops, told.backward_flops) == (step.forward_flops, step.backward_flops)
    # on a CPU bitsandbytes unpacks a weight inside its operator, where no meter sees it
    peak = told.peak.bytes - held[0]
    assert Peak.of(step, 0).bytes <= peak <= Peak.of(step, 0).bytes + WIDTH * MLP * 2


@makers
def test_explain_is_exact(made: Callable[[torch.dtype], nn.Module]) -> None:
    model = made(torch.float32)
    for _ in range(2):
        step, told = step_of(model), explain(model, inputs())
        assert told.assumptions == ()
        assert told.kept_bytes == step.kept_bytes
        assert told.peak.bytes - told.parameter_bytes - told.buffer_bytes == Peak.of(step, 0).bytes
        wrap_blocks(model, self_check="never")


@makers
@pytest.mark.parametrize(
    "options", [{}, {"save": "matmul"}, {"save": "matmul:2", "offload": "cpu", "save_offload": True}], ids=str
)
def test_gradients_are_those_without_checkpointing(
    made: Callable[[torch.dtype], nn.Module], options: dict[str, Any]
) -> None:
    plain = gradients(made(torch.float32))
    model = made(torch.float32)
    surgery = wrap_blocks(model, **options)
    assert all(map(torch.equal, gradients(model), plain))
    if made is by_bitsandbytes and "save" in options:
        assert "bitsandbytes.gemm_4bit" in str(surgery)


@makers
def test_verify_has_a_verdict(made: Callable[[torch.dtype], nn.Module]) -> None:
    model = made(torch.float32)
    wrap_blocks(model)
    report = verify(model, inputs())
    assert report.ok, str(report)


def test_a_plan_keeps_its_promise() -> None:
    model = by_bitsandbytes(torch.float32)
    whole = explain(model, inputs(), optimizer="adamw", device="H100").peak_bytes
    made = plan(model, inputs(), whole - 200_000)
    assert made.is_needed
    made.apply(model)
    assert step_of(model).kept_bytes == made.chosen.kept_bytes
