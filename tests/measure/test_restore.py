"""A model is restored, whatever happens to it inside."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import numpy
import torch
from torch import nn

from ckpt_surgery.measure.restore import model_state_kept

pytestmark = [pytest.mark.both, pytest.mark.torch]

WIDTH = 3


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))


def linear(borrowed: nn.Sequential) -> nn.Linear:
    layer = borrowed[0]
    assert isinstance(layer, nn.Linear)
    return layer


def norm(borrowed: nn.Sequential) -> nn.BatchNorm1d:
    layer = borrowed[1]
    assert isinstance(layer, nn.BatchNorm1d)
    return layer


def add_a_buffer(borrowed: nn.Sequential) -> None:
    borrowed[1].register_buffer("extra", torch.zeros(1))


def replace_the_forward(borrowed: nn.Sequential) -> None:
    vars(borrowed[0])["forward"] = lambda values: values


def hooks_on_gradients(borrowed: nn.Sequential) -> object:
    return list(linear(borrowed).weight._backward_hooks or ())


SPOILERS: list[tuple[str, Callable[[nn.Sequential], object], Callable[[nn.Sequential], object]]] = [
    ("a value", lambda m: nn.init.ones_(linear(m).weight), lambda m: linear(m).weight.tolist()),
    ("a buffer", lambda m: norm(m).get_buffer("running_mean").add_(1), lambda m: norm(m).running_mean.tolist()),  # type: ignore[union-attr]
    ("a new buffer", add_a_buffer, lambda m: sorted(dict(m.named_buffers()))),
    ("a flag", lambda m: linear(m).weight.requires_grad_(False), lambda m: [p.requires_grad for p in m.parameters()]),
    ("a gradient", lambda m: m(torch.ones(2, WIDTH)).sum().backward(), lambda m: [p.grad for p in m.parameters()]),
    ("the mode", lambda m: m[1].eval(), lambda m: [part.training for part in m.modules()]),
    ("a forward", replace_the_forward, lambda m: "forward" in vars(m[0])),
    ("a hook", lambda m: m[0].register_forward_hook(lambda *_: None), lambda m: list(m[0]._forward_hooks)),
    ("a hook on a gradient", lambda m: linear(m).weight.register_hook(lambda g: g), hooks_on_gradients),  # type: ignore[no-untyped-call]
    ("torch's generator", lambda m: torch.rand(1), lambda m: torch.get_rng_state().tolist()),
    ("Python's generator", lambda m: random.random(), lambda m: random.getstate()),
    ("NumPy's generator", lambda m: numpy.random.rand(), lambda m: str(numpy.random.get_state())),
]


@pytest.mark.parametrize(("spoil", "state"), [pytest.param(*functions, id=name) for name, *functions in SPOILERS])
@pytest.mark.parametrize("raises", [False, True], ids=["", "when the body raises"])
def test_what_the_body_changed_is_as_before(
    spoil: Callable[[nn.Sequential], object], state: Callable[[nn.Sequential], object], raises: bool
) -> None:
    borrowed = model()
    before = state(borrowed)

    def body() -> None:
        with model_state_kept(borrowed):
            spoil(borrowed)
            assert state(borrowed) != before
            if raises:
                raise KeyError("spoilt")

    if raises:
        with pytest.raises(KeyError, match="spoilt"):
            body()
    else:
        body()
    assert state(borrowed) == before


def test_a_hook_that_was_there_can_still_be_removed() -> None:
    borrowed = model()
    handle = borrowed[0].register_forward_hook(lambda *_: None)
    with model_state_kept(borrowed):
        borrowed(torch.ones(2, WIDTH))
    handle.remove()
    assert not borrowed[0]._forward_hooks
