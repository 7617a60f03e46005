"""Layers of 4 bits: their sizes, and what they keep."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ckpt_surgery.planning.allocations import AllocationKind, run_metered
from ckpt_surgery.planning.lora import Linear4Bit, add_lora
from ckpt_surgery.planning.sharding import held_states
from ckpt_surgery.planning.states import parameter_bytes
from ckpt_surgery.planning.training import ALONE
from tests.planning.test_target import config, model_of

pytestmark = [pytest.mark.torch, pytest.mark.both]

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


def test_a_frozen_layer_of_4_bits_passes_the_gradient_on() -> None:
    layer = Linear4Bit(INPUTS, OUTPUTS, None)
    hidden = torch.rand(ROWS, INPUTS, requires_grad=True)
    layer(hidden).sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.shape == hidden.shape
    assert layer.weight.grad is None


def test_all_but_the_linear_layers_stays_as_it_was(tmp_path: Path) -> None:
    wide, packed = model_of(config(tmp_path)), model_of(config(tmp_path))
    add_lora(wide.model, 4, wide.shapes)
    add_lora(packed.model, 4, packed.shapes, four_bits=True)
    before, after = wide.explained(), packed.explained()
    weights = 3 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128)  # of the attention and the MLP
    assert before.parameter_bytes - after.parameter_bytes == weights * 2 - weights // 2
    assert after.gradient_bytes == before.gradient_bytes
    assert after.backward_flops == before.backward_flops


class ScaledParameter(nn.Parameter):
    """A parameter like a quantized one: its scales are attributes of an attribute."""


class Scales:
    def __init__(self, module: nn.Module) -> None:
        self.values, self.inner = torch.zeros(6), self
        self.same, self.module = self.values, module


def test_scales_beside_a_parameter_count() -> None:
    parameter = ScaledParameter(torch.zeros(10), requires_grad=False)
    assert parameter_bytes(parameter) == 40
    parameter.scales = Scales(nn.Linear(100, 100))  # type: ignore[attr-defined]
    assert parameter_bytes(parameter) == 40 + 24
    assert held_states([parameter], ALONE)[0] == 40 + 24


def test_a_layer_with_data_may_be_replaced_too() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    assert add_lora(model, 2, nullcontext(), four_bits=True) == 2
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert trained == [f"{layer}.lora_{half}.weight" for layer in (0, 1) for half in "AB"]
