"""What a plan can do, as Python that finds the same modules, and which MLPs can be tiled."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from torch import nn

from ckpt_surgery.planning.choices import PlanChoice, tileable, width_of
from ckpt_surgery.runtime.discovery import Block

pytestmark = pytest.mark.torch


class Mlp(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        for number, part in enumerate(parts):
            self.add_module(f"part_{number}", part)


def model_of(mlps: dict[str, list[nn.Module]]) -> Any:
    """Stacks of blocks with an MLP each."""
    model = nn.Module()
    for name, modules in mlps.items():
        blocks = nn.ModuleList(nn.ModuleDict({"mlp": module}) for module in modules)
        model.add_module(name, blocks)
    return model


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a.0.mlp", "a.1.mlp", "b.0.mlp"], "[block.mlp for block in model.a] + [block.mlp for block in model.b]"),
        (["a.1.mlp"], "[model.a[i].mlp for i in (1,)]"),
        (["a.0.deep.0.mlp"], "[model.get_submodule(name) for name in ['a.0.deep.0.mlp']]"),
    ],
)
def test_a_list_of_modules_as_python(names: list[str], expected: str) -> None:
    choice = PlanChoice(tiled=tuple(names), shard_size=7)
    assert choice.code({}) == f"tile_mlp({expected}, shard_size=7)"


def test_dense_mlps_are_tileable_and_mixtures_are_not() -> None:
    first, wide = nn.Linear(4, 16), nn.Linear(4, 4)
    dense = Mlp(first, nn.Linear(16, 4))
    experts = Mlp(nn.Linear(4, 2), nn.ModuleList([nn.Linear(4, 4)]))
    grouped = Mlp()
    grouped.register_parameter("weights", nn.Parameter(first.weight.unsqueeze(0)))
    model = model_of({"a": [dense, experts, grouped, nn.Identity(), wide]})
    blocks = [Block(f"a.{number}", block, "plain", "a") for number, block in enumerate(model.a)]
    assert list(tileable(blocks)) == ["a.0.mlp", "a.4.mlp"]
    assert width_of([dense, wide]) == 4
    assert width_of([]) == 0
