"""The operators of a checkpointed block whose results a plan may keep instead of recomputing, and what that changes.

The names are those of the option `save` of `wrap_blocks`. Each is metered alone; what several keep adds up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from ckpt_surgery.runtime.selective.policies import ATTENTION, VOCABULARY, in_words

_MATMUL = "matmul"
_OFFERED: tuple[tuple[str, ...], ...] = ((ATTENTION,), (f"{_MATMUL}:2", _MATMUL), ("conv",), ("norm",))
"""Names in groups: at most one of each is taken. A router's and random results are kept for other reasons."""
_SOFTMAX = frozenset({"aten._softmax", "aten._safe_softmax"})


@dataclass(frozen=True, slots=True)
class BlockSaving:
    """The effect of `names` in one checkpointed block.

    Attributes:
        kept: extra bytes that the block keeps on the device.
        own: extra bytes alive in its backward, apart from what the blocks before it keep.
        seconds: the time that its recompute saves.
        moved: extra bytes that it keeps in host memory.
    """

    names: tuple[str, ...] = ()
    kept: int = 0
    own: int = 0
    seconds: float = 0.0
    moved: int = 0


def names_for(operators: Iterable[str]) -> list[str]:
    """List the names that stand for any of these operators, such as "aten.mm"."""
    run = frozenset(operators)
    return [name for group in _OFFERED for name in group if not run.isdisjoint(_operators_of(name))]


def keeps_products(name: str) -> bool:
    """Tell whether a name keeps matrix products, which are of no use in an MLP that computes them in shards."""
    return name.startswith(_MATMUL)


def combined(single: Iterable[BlockSaving]) -> list[BlockSaving]:
    """List every combination of savings of one name each, the empty one first."""
    known = {saving.names: saving for saving in single}
    groups = [[BlockSaving(), *(known[(name,)] for name in group if (name,) in known)] for group in _OFFERED]
    return [_sum(some) for some in product(*groups)]


def _operators_of(name: str) -> frozenset[str]:
    operators = frozenset(map(in_words, VOCABULARY[name.partition(":")[0]]))
    return operators | _SOFTMAX if name == ATTENTION else operators


def _sum(savings: Sequence[BlockSaving]) -> BlockSaving:
    return BlockSaving(
        tuple(name for each in savings for name in each.names),
        sum(each.kept for each in savings),
        sum(each.own for each in savings),
        sum(each.seconds for each in savings),
        sum(each.moved for each in savings),
    )
