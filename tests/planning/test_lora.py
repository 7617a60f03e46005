"""Adapters on a model without data, and frozen layers of 4 bits: which layers become one, and what they keep."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ckpt_surgery.errors import PlanningError
from ckpt_surgery.planning.allocations import AllocationKind
from ckpt_surgery.planning.lora import Linear4Bit, LoraLinear, add_lora, pack_frozen
from ckpt_surgery.planning.shapes import ShapesOnly
from ckpt_surgery.planning.step_meter import run_metered
from tests.planning.test_target import config, model_of

pytestmark = [pytest.mark.torch, pytest.mark.both]


def test_all_linear_layers_but_the_head_get_an_adapter(tmp_path: Path) -> None:
    released = model_of(config(tmp_path))
    assert add_lora(released.model, 4, released.shapes) == 3 * 7
    adapted = [name for name, module in released.model.named_modules() if isinstance(module, LoraLinear)]
    assert "lm_head" not in adapted
    assert "model.layers.0.mlp.gate_proj" in adapted


def test_what_4_bits_would_hold_is_what_is_frozen_without_the_head(tmp_path: Path) -> None:
    released = model_of(config(tmp_path))
    assert released.explained().frozen_bytes == 0
    add_lora(released.model, 4, released.shapes)
    told = released.explained()
    layers = 3 * (4 * 64 * 64 + 3 * 64 * 128) - 3 * 2 * 64 * (64 - 32)
    assert (told.adapted, told.frozen_bytes) == (True, 2 * layers)
    pack_frozen(released.model, released.shapes)
    assert released.explained().frozen_bytes == 0


def test_layers_of_gpt2_are_linear_too() -> None:
    released = model_of("GPT2LMHeadModel")
    assert add_lora(released.model, 4, released.shapes) == 12 * 4
    assert released.explained().gradient_bytes > 0


def test_a_model_without_a_linear_layer_is_refused() -> None:
    with pytest.raises(PlanningError, match="Sequential has no linear layer"):
        add_lora(nn.Sequential(nn.LayerNorm(4)), 4, ShapesOnly())


def test_an_adapted_layer_computes_what_it_says() -> None:
    layer = nn.Linear(8, 6)
    adapted = LoraLinear(layer, 8, 6, 2)
    row = torch.rand(3, 8)
    extra = 2.0 * row @ adapted.lora_A.weight.T @ adapted.lora_B.weight.T
    torch.testing.assert_close(adapted(row), layer(row) + extra)
    assert adapted.weight is layer.weight
    assert adapted.bias is layer.bias


INPUTS, OUTPUTS, ROWS = 192, 256, 6


def test_a_weight_takes_half_a_byte_and_its_share_of_scales() -> None:
    layer = Linear4Bit(INPUTS, OUTPUTS, None)
    weights = INPUTS * OUTPUTS
    scales = weights // 64
    held = sum(tensor.numel() * tensor.itemsize for tensor in (*layer.parameters(), *layer.buffers()))
    assert held == weights // 2 + scales + 4 * (scales // 256) + 4 * (16 + 256) + 4
    odd = dict(Linear4Bit(3, 3, None).named_buffers())
    assert (odd["scales"].numel(), odd["scales_of_scales"].numel()) == (1, 1)


def test_the_weight_is_made_twice_and_never_kept() -> None:
    layer = Linear4Bit(INPUTS, OUTPUTS, nn.Parameter(torch.zeros(OUTPUTS), requires_grad=False))
    step = run_metered(layer, ((torch.rand(2, ROWS, INPUTS, requires_grad=True),), {}), Tensor.sum)
    made = [each for each in step.allocations if each.shape == (OUTPUTS, INPUTS)]
    assert [each.kind for each in made] == [AllocationKind.TEMPORARY, AllocationKind.BACKWARD]
    assert step.kept_bytes == 0
    product = 2 * 2 * ROWS * INPUTS * OUTPUTS
    assert (step.forward_flops, step.backward_flops) == (product, product)


def test_all_but_the_linear_layers_stays_as_it_was(tmp_path: Path) -> None:
    wide, packed = model_of(config(tmp_path)), model_of(config(tmp_path))
    add_lora(wide.model, 4, wide.shapes)
    add_lora(packed.model, 4, packed.shapes, four_bits=True)
    before, after = wide.explained(), packed.explained()
    weights = 3 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128)  # of the attention and the MLP
    assert before.parameter_bytes - after.parameter_bytes == weights * 2 - weights // 2
    assert after.gradient_bytes == before.gradient_bytes
    assert after.backward_flops == before.backward_flops
