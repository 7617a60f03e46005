"""A plan's choices, as arguments of `wrap_blocks`, as YAML and as Python: each block does what was chosen for it."""

from __future__ import annotations

import random
from typing import Any

import pytest
import yaml

pytest.importorskip("torch")

from ckpt_surgery.planning.choices import PlanChoice, as_yaml
from ckpt_surgery.runtime.blocks.selection import matches
from ckpt_surgery.runtime.surgery.options import SurgeryOptions

pytestmark = pytest.mark.torch

NAMES = ((), ("attention",), ("norm", "matmul"))


def stack(name: str, blocks: int) -> tuple[str, ...]:
    return tuple(f"{name}.{place}".removeprefix(".") for place in range(blocks))


@pytest.mark.parametrize(
    ("checkpointed", "expected"),
    [
        ({"a.0": (), "a.1": (), "b.0": ()}, {}),
        ({"a.0": ("norm",)}, {"first": {"a": 1, "b": 0}, "save": ["norm"]}),
        ({"a.1": ()}, {"stacks": ["a.1"]}),
        ({"a.1": (), "b.0": ("norm",)}, {"stacks": ["a.1", "b"], "save": {"b": ["norm"]}}),
        ({"a.0": (), "a.1": ("norm",), "b.0": ("conv",)}, {"save": {"a.1": ["norm"], "b": ["conv"]}}),
    ],
)
def test_equal_blocks_are_described_briefly(
    checkpointed: dict[str, tuple[str, ...]], expected: dict[str, Any]
) -> None:
    stacks = {"a": stack("a", 2), "b": stack("b", 1)}
    assert PlanChoice(stacks, checkpointed).arguments()["wrap_blocks"] == expected


def done(stacks: dict[str, tuple[str, ...]], arguments: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """Read each checkpointed block's kept operators from arguments of `wrap_blocks`."""
    options = SurgeryOptions.of(**arguments)
    found = {}
    for name, blocks in stacks.items():
        named = [
            block
            for block in blocks
            if options.stacks is None or any(matches(each, one) for one in options.stacks for each in (block, name))
        ]
        for block in named[: options.first_of(name, len(named))]:
            found[block] = options.save.names_for(block)
    return found


@pytest.mark.parametrize("start", range(0, 300, 100))
def test_each_block_does_what_was_chosen_for_it(start: int) -> None:
    for seed in range(start, start + 100):
        source = random.Random(seed)
        names = source.sample(["a", "a.b", "a.x", "c[1]", "", "ab"], source.randint(1, 3))
        stacks = {name: stack(name, source.choice([1, 3, 12, 25])) for name in names}
        runs = source.randint(1, 12)  # so many neighbours do the same
        chosen: dict[str, tuple[str, ...]] = {}
        for blocks in stacks.values():
            for place, block in enumerate(blocks):
                if place % runs == 0:
                    taken = source.choice([None, *NAMES])
                if taken is not None:
                    chosen[block] = taken
        if chosen:
            assert done(stacks, PlanChoice(stacks, chosen).arguments()["wrap_blocks"]) == chosen, seed


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
    imports, call = choice.code.split("\n\n")
    assert (imports, call) == ("from ckpt_surgery.distributed import tile_mlp", f"tile_mlp({expected}, shard_size=7)")
