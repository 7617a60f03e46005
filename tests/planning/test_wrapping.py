"""A plan's arguments of `wrap_blocks` make each block do what was chosen for it."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("torch")

from ckpt_surgery.planning.choices import PlanChoice
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


def test_many_blocks_take_few_patterns() -> None:
    stacks = {"layers": stack("layers", 40)}
    saved = {name: ("norm",) if 12 <= place < 34 or place == 3 else () for place, name in enumerate(stacks["layers"])}
    patterns = PlanChoice(stacks, saved).arguments()["wrap_blocks"]["save"]
    assert list(patterns) == ["layers.3", "layers.1[2-9]", "layers.2[0-9]", "layers.3[0-3]"]


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
