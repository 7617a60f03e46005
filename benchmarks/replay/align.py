"""Which call site of one tree is which of another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from benchmarks.replay.sites import Site


def align(before: Iterable[Site], other: Iterable[Site]) -> dict[Site, Site]:
    """Match sites of two trees: by method, callee and order; then, for what is left, by the block's class."""
    left, right = list(before), list(other)
    partners: dict[Site, Site] = {}
    for key in (_by_callee, _by_block, _by_block_anywhere):
        pools: dict[tuple[object, ...], list[Site]] = defaultdict(list)
        taken = set(partners.values())
        for site in right:
            if site not in taken:
                pools[key(site)].append(site)
        waiting: dict[tuple[object, ...], list[Site]] = defaultdict(list)
        for site in left:
            if site not in partners:
                waiting[key(site)].append(site)
        for group, sites in waiting.items():
            partners.update(_pair(sites, pools.get(group, [])))
    return partners


def _by_callee(site: Site) -> tuple[object, ...]:
    return (site.place, site.callee)


def _by_block(site: Site) -> tuple[object, ...]:
    return (site.place, site.blocks or site.callee)


def _by_block_anywhere(site: Site) -> tuple[object, ...]:
    return (site.place[:3], site.blocks or site.callee)


def _pair(left: list[Site], right: list[Site]) -> dict[Site, Site]:
    """Pair in order; where the numbers differ, those with the same arguments, then the same target, go first."""
    if len(left) == len(right):
        return dict(zip(left, right, strict=True))
    partners: dict[Site, Site] = {}
    free = list(right)
    for same in (_same_arguments, _same_target, _any):
        for site in left:
            partner = next((o for o in free if site not in partners and same(site, o)), None)
            if partner:
                partners[site] = partner
                free.remove(partner)
    return partners


def _same_arguments(one: Site, other: Site) -> bool:
    return one.arguments.bound == other.arguments.bound


def _same_target(one: Site, other: Site) -> bool:
    return one.target == other.target


def _any(one: Site, other: Site) -> bool:
    return True
