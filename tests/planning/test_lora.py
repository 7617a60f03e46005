"""Adapters on a model without data: the layers that get one, and what they train and keep."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from ckpt_surgery.errors import PlanningError
from ckpt_surgery.planning.lora import LoraLinear, add_lora, pack_frozen
from ckpt_surgery.planning.shapes import ShapesOnly
from tests.planning.test_target import config, model_of

pytestmark = [pytest.mark.torch, pytest.mark.both]


def test_all_linear_layers_but_the_head_get_an_adapter(tmp_path: Path) -> None:
    released = model_of(config(tmp_path))
    assert add_lora(released.model, 4, released.shapes) == 3 * 7
    adapted = [name for name, module in released.model.named_modules() if isinstance(module, LoraLinear)]
    assert "lm_head" not in adapted
    assert "model.layers.0.mlp.gate_proj" in adapted


def test_adapters_alone_are_trained(tmp_path: Path) -> None:
    released = model_of(config(tmp_path))
    whole = released.explained()
    add_lora(released.model, 4, released.shapes)
    told = released.explained()
    # of the four of the attention and the three of the MLP: inputs and outputs
    widths = 3 * (64 + 64 + 2 * (64 + 32) + 64 + 64 + 3 * (64 + 128))
    assert told.gradient_bytes == 4 * widths * 4
    assert told.parameter_bytes - whole.parameter_bytes == told.gradient_bytes
    assert told.gradient_bytes < whole.gradient_bytes


def test_they_are_checkpointed_with_their_blocks(tmp_path: Path) -> None:
    released = model_of(config(tmp_path))
    add_lora(released.model, 4, released.shapes)
    kept = released.explained().kept_bytes
    released.wrap()
    told = released.explained()
    assert told.checkpointed == 3
    assert told.kept_bytes < kept / 2


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
