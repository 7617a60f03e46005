"""The modules that can be tiled as MLPs, and why others cannot."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn

from ckpt_surgery.long_sequences.mlps import MlpReason, mlps_of

pytestmark = [pytest.mark.torch, pytest.mark.both]


class ToyMLP(nn.Module):
    def __init__(self, *more: nn.Module, out: int = 4) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, out)
        self.more = nn.Sequential(*more)

    def forward(self, values: Tensor) -> Tensor:
        result: Tensor = self.down(self.up(values))
        return result


class TwoTensorsMLP(ToyMLP):
    def forward(self, values: Tensor, residual: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(values) + residual


class ExpertsMLP(ToyMLP):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.Parameter(torch.zeros(2, 4, 4))


class ListMLP(ToyMLP):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(4, 4)])


def reasons(mlp: nn.Module) -> list[tuple[str, int, MlpReason | None]]:
    block = nn.ModuleDict({"attention": nn.Linear(4, 4), "inner": mlp})
    return [(found.name, found.width, found.reason) for found in mlps_of(nn.ModuleList([block]), [block])]


def test_a_module_that_widens_tokens_and_narrows_them_is_tiled() -> None:
    assert reasons(ToyMLP(nn.Dropout(), nn.LayerNorm(4))) == [("0.inner", 4, None)]


class AdaptedLinear(nn.Module):
    """A layer with an adapter, made as PEFT makes it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, 2)})


def test_adapters_change_nothing() -> None:
    adapted = ToyMLP()
    adapted.up, adapted.down = AdaptedLinear(adapted.up), AdaptedLinear(adapted.down)  # type: ignore[assignment]
    assert reasons(adapted) == [("0.inner", 4, None)]


@pytest.mark.parametrize(
    ("mlp", "reason"),
    [
        (TwoTensorsMLP(), MlpReason.ARGUMENTS),
        (ExpertsMLP(), MlpReason.MIXES),
        (ListMLP(), MlpReason.MIXES),
        (ToyMLP(ListMLP()), MlpReason.MIXES),
        (ToyMLP(nn.BatchNorm1d(4)), MlpReason.MIXES),
        (ToyMLP(nn.Conv1d(4, 4, 3)), MlpReason.MIXES),
        (ToyMLP(out=5), MlpReason.MIXES),
    ],
    ids=[
        "two tensors",
        "stacked experts",
        "a list of experts",
        "one deeper",
        "running statistics",
        "a convolution",
        "another size",
    ],
)
def test_what_cannot_be_tiled_is_named(mlp: nn.Module, reason: MlpReason) -> None:
    assert [found[2] for found in reasons(mlp)] == [reason]


def test_only_the_outermost_in_blocks_counts() -> None:
    outer = ToyMLP(ToyMLP())
    assert len(reasons(outer)) == 1
    assert mlps_of(outer, []) == []


def test_other_modules_are_no_mlps() -> None:
    assert reasons(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))) == []
