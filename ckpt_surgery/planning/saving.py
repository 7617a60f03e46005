"""Which operators of checkpointed blocks a plan may keep instead of running them again, and what that costs and saves.

The names are those of the option `save` of `wrap_blocks`. Each is metered by itself; what several keep adds up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from ckpt_surgery.runtime.policies import ATTENTION, VOCABULARY, in_words

_MATMUL = "matmul"
_OFFERED: tuple[tuple[str, ...], ...] = ((ATTENTION,), (f"{_MATMUL}:2", _MATMUL), ("conv",), ("norm",))
"""Names of which at most one of each group is taken. A router's and random results are kept for other reasons."""
_SOFTMAX = frozenset({"aten._softmax", "aten._safe_softmax"})


@dataclass(frozen=True, slots=True)
class Saving:
    """What `names` change in each checkpointed block: bytes that it keeps more, seconds that it recomputes less.

    `own` are the bytes that are alive more in its backward, beside what the blocks before it keep.
    """

    names: tuple[str, ...] = ()
    bytes: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    own: Mapping[str, int] = field(default_factory=dict)

    @property
    def keeps_products(self) -> bool:
        """Whether matrix products are kept, which are of no use in an MLP that computes them by shards."""
        return any(name.startswith(_MATMUL) for name in self.names)


def names_for(operators: Iterable[str]) -> list[str]:
    """The names that stand for any of these operators, such as "aten.mm"."""
    run = frozenset(operators)
    return [name for group in _OFFERED for name in group if not run.isdisjoint(_operators_of(name))]


def combined(single: Sequence[Saving]) -> list[Saving]:
    """Every choice among savings of one name each, the empty one first."""
    known = {saving.names: saving for saving in single}
    groups = [[Saving(), *(known[(name,)] for name in group if (name,) in known)] for group in _OFFERED]
    return [_sum(some) for some in product(*groups)]


def _operators_of(name: str) -> frozenset[str]:
    operators = frozenset(map(in_words, VOCABULARY[name.partition(":")[0]]))
    return operators | _SOFTMAX if name == ATTENTION else operators


def _sum(savings: Iterable[Saving]) -> Saving:
    names: tuple[str, ...] = ()
    kept: Counter[str] = Counter()
    own: Counter[str] = Counter()
    seconds: dict[str, float] = {}
    for each in savings:
        names += each.names
        kept.update(each.bytes)
        own.update(each.own)
        for block, time in each.seconds.items():
            seconds[block] = seconds.get(block, 0.0) + time
    return Saving(names, dict(kept), seconds, dict(own))
