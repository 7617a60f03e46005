"""Of stages and the blocks in them, the level that saves more is checkpointed."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from torch import nn

from ckpt_surgery.runtime.blocks.selection import chosen_level
from tests.zoo.stack_toys import FeedBlock, Stage

pytestmark = [pytest.mark.both, pytest.mark.torch]


class Sublayers(nn.Module):
    """A block made of different parts in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ModuleList([FeedBlock(), Stage(1)])


def named(whole: nn.Module, *kinds: type[nn.Module]) -> dict[str, nn.Module]:
    return {name: module for name, module in whole.named_modules() if type(module) in kinds}


def test_a_stage_gives_way_to_its_blocks_where_they_keep_much_less() -> None:
    whole = nn.ModuleList([Stage(6), Stage(6)])
    assert chosen_level(named(whole, Stage, FeedBlock)) == tuple(named(whole, FeedBlock))


def test_a_block_of_two_parts_stays_a_block() -> None:
    whole = nn.ModuleList([Sublayers(), Sublayers()])
    assert chosen_level(named(whole, Sublayers, FeedBlock, Stage)) == ("0", "1")


def test_the_largest_stage_decides_for_its_class() -> None:
    whole = nn.ModuleList([Stage(2), Stage(6)])
    assert chosen_level(named(nn.ModuleList([Stage(2)]), Stage, FeedBlock)) == ("0",)
    assert chosen_level(named(whole, Stage, FeedBlock)) == tuple(named(whole, FeedBlock))


def test_a_stage_without_blocks_stays_where_others_of_its_class_give_way() -> None:
    modules = named(nn.ModuleList([Stage(6), Stage(6)]), Stage, FeedBlock)
    few = {name: module for name, module in modules.items() if not name.startswith("0.")}
    assert chosen_level(few) == ("0", *(name for name in few if name.startswith("1.")))
