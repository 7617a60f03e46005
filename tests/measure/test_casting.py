"""A model cast to half precision for a while, with convolutions that are fast and right on a CPU."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn

from ckpt_surgery.measure.casting import cast_to, in_precision
from ckpt_surgery.measure.kinds import Precision

pytestmark = pytest.mark.both


def _convolution() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return nn.Conv2d(8, 8, 3, padding=1), torch.randn(2, 8, 9, 9)


def _gradients(model: nn.Module, pixels: Tensor) -> list[Tensor]:
    pixels = pixels.clone().requires_grad_()
    model(pixels).square().sum().backward()
    results = [pixels.grad, *(parameter.grad for parameter in model.parameters())]
    model.zero_grad()
    return [gradient for gradient in results if gradient is not None]


def test_convolutions_in_float16_are_those_of_float32_rounded() -> None:
    model, pixels = _convolution()
    wide = _gradients(model, pixels)
    with in_precision(model, Precision.FLOAT16):
        output = model(pixels.half())
        gradients = _gradients(model, pixels.half())
        weight, bias = (parameter.float() for parameter in model.parameters())
    assert {gradient.dtype for gradient in (output, *gradients)} == {torch.float16}
    expected = torch.nn.functional.conv2d(pixels.half().float(), weight, bias, padding=1).half()
    assert torch.equal(output, expected)
    for gradient, other in zip(gradients, wide, strict=True):
        assert (gradient.float() - other).abs().max() < 0.01 * other.abs().max()


@pytest.mark.parametrize("precision", list(Precision))
def test_afterwards_the_model_is_as_it_was(precision: Precision) -> None:
    model, pixels = _convolution()
    before, parameters = model(pixels), list(model.parameters())
    with in_precision(model, precision):
        model(cast_to(pixels, precision))
    assert all(now is then for now, then in zip(model.parameters(), parameters, strict=True))
    assert torch.equal(model(pixels), before)
