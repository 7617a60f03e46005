"""YAML that a parser reads as it was written."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

pytest.importorskip("torch")

from ckpt_surgery.planning.choices import PlanChoice, as_yaml

pytestmark = pytest.mark.torch

CHOICE = PlanChoice(
    stacks={"model.layers": ("model.layers.0", "model.layers.1"), "a: #b": ("a: #b.0", "a: #b.1")},
    checkpointed={"model.layers.0": ("attention", "matmul:2"), "a: #b.0": ("norm",), "a: #b.1": ("norm",)},
    offload=True,
    save_offload=True,
    fused_loss=True,
    tiled=("model.layers.0.mlp",),
    shard_size=16,
)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"model": "Foo", "calls": {}, "time": 0.25, "small": 1e-07, "none": None},
        {"calls": CHOICE.arguments()},
        {"a": {"b": {"c.d": [1, "x: y", {"e": True}], "on": "no", "null": 1}}},
    ],
)
def test_what_is_written_is_read(document: dict[str, Any]) -> None:
    assert (yaml.safe_load(as_yaml(document)) or {}) == document


def test_a_choice_is_the_calls_with_their_arguments() -> None:
    assert CHOICE.arguments() == {
        "tile_mlp": {"modules": ["model.layers.0.mlp"], "shard_size": 16},
        "fuse_loss": {},
        "wrap_blocks": {
            "first": {"model.layers": 1, "a: #b": 2},
            "offload": "cpu",
            "save": {"model.layers": ["attention", "matmul:2"], "a: #b": ["norm"]},
            "save_offload": True,
        },
    }
    assert PlanChoice().arguments() == {}
