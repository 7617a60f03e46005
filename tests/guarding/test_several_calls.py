"""Blocks that run several times in a step: each call is run alone, and parameters' gradients are added up."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from ckpt_surgery import guard, wrap_blocks
from ckpt_surgery.guarding.faults import GuardFaultKind
from ckpt_surgery.guarding.proof import ProofStatus
from ckpt_surgery.runtime.tools.containers import tensors
from tests.guarding.test_guard import Way, enable, train, ways
from tests.measure.toys import Layer, Model, SureLayer, model_of, values
from tests.zoo.tiny_models import llama, tokens

pytestmark = [pytest.mark.both, pytest.mark.torch]

HOOKS_INSIDE = "__call__" in vars(GradientCheckpointingLayer)  # in 4.52 to 5.17 at least, no more in 5.23
"""Whether a recompute runs the hooks of transformers' layers, so that its call is unknown."""


class Again(Model):
    """A model that runs its stack twice, like models that share layers over depth."""

    def forward(self, values: Tensor) -> Any:
        return self.last(self.run_layers(self.run_layers(self.first(values))))


@ways
def test_a_stack_that_runs_twice_is_proved_call_by_call(way: Way) -> None:
    model, bare = (model_of(SureLayer, SureLayer, whole=Again) for _ in range(2))
    expected = train(bare)
    way(model)
    with guard(model, on_fault="raise") as watching:
        assert train(model) == expected
        report = watching.report()
    assert [row.counts for row in report.blocks] == [(2, 2)] * 2
    if HOOKS_INSIDE and isinstance(way, partial):  # reentrant
        assert {row.proof.status for row in report.blocks} == {ProofStatus.SEVERAL_CALLS}
    else:
        assert report.proved == 2
        assert [row.proof.compared for row in report.blocks] == [4, 4], "two parameters, and what each call was given"


class Drifts(SureLayer):
    """A layer that computes something else in the recompute of its second call."""

    def __init__(self) -> None:
        super().__init__()
        self.factors = itertools.chain([1.0, 1.0, 2.0], itertools.cycle([1.0, 1.0, 1.0, 2.0]))

    def forward(self, hidden_states: Tensor) -> Tensor:
        return torch.tanh(self.linear(hidden_states) * next(self.factors))


def test_a_call_that_drifts_is_reported_by_its_parameters() -> None:
    model = model_of(SureLayer, Drifts, whole=Again)
    enable(model)
    with guard(model, on_fault="collect") as watching:
        train(model)
        report = watching.report()
    (fault,) = report.faults
    assert fault.kind is GuardFaultKind.WRONG_GRADIENTS
    assert fault.subjects[0] == "layers.1"
    assert {"linear.weight", "linear.bias"} <= set(fault.subjects)
    assert any(" in call " in name for name in fault.subjects)


class Embeds(nn.Module):
    """A loss that embeds two columns with one model, as in sentence-transformers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, rows: int = 2) -> Tensor:
        first, second = (self.model(**tokens(n)).logits.float().mean((0, 1)) for n in (rows, rows + 1))
        return torch.cosine_similarity(first, second, dim=0)


@pytest.mark.parametrize("precision", [None, torch.bfloat16])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_loss_that_embeds_several_columns_is_proved(wrapped: bool, precision: torch.dtype | None) -> None:
    model = llama(2, use_cache=False, attention_dropout=0.1).float().train()
    loss_of = Embeds(model)
    if wrapped:
        wrap_blocks(model)
    else:
        enable(model)
    with guard(loss_of, on_fault="raise") as watching:
        for _ in range(3):
            with torch.autocast("cpu", dtype=precision or torch.bfloat16, enabled=precision is not None):
                loss = loss_of()
            loss.backward()
        report = watching.report()
    assert report.proved == 2
    assert [row.counts for row in report.blocks] == [(2, 2)] * 2


class Cached(nn.Module):
    """A loss that embeds without gradients first, and again piece by piece in a hook of its backward."""

    def __init__(self, model: Model, made_of: bool) -> None:
        super().__init__()
        self.model = model
        self.made_of = made_of

    def embed(self) -> Tensor:
        return torch.as_tensor(self.model(**values()).sum(-1))

    def forward(self) -> Tensor:
        with torch.no_grad():
            embedded = self.embed()
        embedded.requires_grad_()
        loss = embedded.square().mean()
        (gradient,) = torch.autograd.grad(loss, embedded)
        loss = loss.detach().requires_grad_()

        def again(_: Tensor) -> None:
            with torch.enable_grad():
                (self.embed() * gradient).sum().backward()  # type: ignore[no-untyped-call]

        loss.register_hook(again)  # type: ignore[no-untyped-call]
        return loss * 1 if self.made_of else loss


@pytest.mark.parametrize("made_of", [False, True], ids=["the loss", "made of the loss"])
def test_of_a_loss_that_embeds_again_in_its_backward_nothing_is_said(made_of: bool) -> None:
    loss_of = Cached(model_of(Layer, Layer), made_of)
    enable(loss_of.model)
    with guard(loss_of, on_fault="raise") as watching:
        for _ in range(3):
            loss_of().backward()
        report = watching.report()
    assert report.ok
    assert [row.counts for row in report.blocks] == [None, None]
    assert report.proved == 0


class Tied(Model):
    """A model whose second block shares the first one's computing part."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.layers[1].linear = self.layers[0].linear


def penalised(model: nn.Module) -> Tensor:
    return next(tensors(model(**values()))).square().mean() + sum(p.square().sum() for p in model.parameters())


@ways
@pytest.mark.parametrize("whole", [Model, Tied])
def test_a_block_is_proved_whatever_else_adds_to_its_gradients(way: Way, whole: Any) -> None:
    model = model_of(SureLayer, SureLayer, whole=whole)
    way(model)
    with guard(model, on_fault="raise") as watching:
        for _ in range(3):
            penalised(model).backward()  # type: ignore[no-untyped-call]
            model.zero_grad()
        report = watching.report()
    assert report.proved == 2
