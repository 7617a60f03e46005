"""The level of a model to checkpoint at, where modules that could be blocks hold others: stages, or what they hold.

Decided by what a step keeps at its peak: the input of each block, what lies between the blocks, and all that one of
them holds while it is recomputed. A module keeps about one tensor for each of its leaves, so leaves are counted.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from ckpt_surgery.runtime.blocks.discovery import around

_WORTHWHILE = 0.6
"""A stage gives way to its blocks where those keep at most this part of what the stage holds."""


def leaves(module: nn.Module) -> int:
    """Estimate how many tensors a module keeps for its backward: one for each leaf, and parameter of the others."""
    own = sum(1 for part in module.modules() if not any(part.children()) and not isinstance(part, nn.Identity))
    parents = (part for part in module.modules() if any(part.children()))
    return own + sum(1 for part in parents for _ in part.parameters(recurse=False))


def chosen_level(modules: Mapping[str, nn.Module]) -> tuple[str, ...]:
    """Choose the modules to checkpoint of those given, by name: none of them lies in another.

    The modules of one class are treated alike: the largest decides.
    """
    inside: dict[str, list[str]] = {name: [] for name in ("", *modules)}
    by_class: dict[type[nn.Module], list[str]] = {}
    for name, module in modules.items():
        inside[around(name, modules)].append(name)
        by_class.setdefault(type(module), []).append(name)
    size = {name: leaves(module) for name, module in modules.items()}
    gives_way: set[type[nn.Module]] = set()

    def blocks_in(name: str) -> list[str]:
        found = []
        for inner in inside[name]:
            gives = inside[inner] and type(modules[inner]) in gives_way  # one that holds no block stays
            found += blocks_in(inner) if gives else [inner]
        return found

    stages = [
        max(some, key=size.__getitem__) for names in by_class.values() if (some := [n for n in names if inside[n]])
    ]
    for stage in sorted(stages, key=lambda name: -name.count(".")):  # those inside others first
        blocks = [size[block] for block in blocks_in(stage)]
        between = size[stage] - sum(blocks)
        if len(blocks) > 1 and len(blocks) + between + max(blocks) <= _WORTHWHILE * size[stage]:
            gives_way.add(type(modules[stage]))
    return tuple(blocks_in(""))
