"""At which level of a model to checkpoint, where modules that could be blocks hold others: stages, or what they hold.

Decided by what a step keeps at its peak: the input of each block, what lies between the blocks, and all that one of
them holds while it is recomputed. A module keeps about one tensor for each of its leaves, so leaves are counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from ckpt_surgery.runtime.blocks.discovery import enclosing

_WORTHWHILE = 0.6
"""A stage gives way to its blocks where those keep at most this part of what the stage holds."""


def leaves(module: nn.Module) -> int:
    """About how many tensors a module keeps for its backward: one for each module without modules, and parameter."""
    own = sum(1 for part in module.modules() if not any(part.children()) and not isinstance(part, nn.Identity))
    parents = (part for part in module.modules() if any(part.children()))
    return own + sum(1 for part in parents for _ in part.parameters(recurse=False))


def chosen_level(modules: Mapping[str, nn.Module]) -> tuple[str, ...]:
    """The names, of those given, of the modules to checkpoint: none of them lies in another.

    The modules of one class are treated alike: the largest decides.
    """
    inside: dict[str, list[str]] = {name: [] for name in ("", *modules)}
    by_class: dict[type[nn.Module], list[str]] = {}
    for name, module in modules.items():
        inside[next((outer for outer in enclosing(name) if outer in modules), "")].append(name)
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
        if _keep_less([size[block] for block in blocks_in(stage)], size[stage]):
            gives_way.add(type(modules[stage]))
    return tuple(blocks_in(""))


def _keep_less(blocks: Sequence[int], stage: int) -> bool:
    """Whether blocks keep so much less than the stage around them that they are checkpointed in its place."""
    between = stage - sum(blocks)
    return len(blocks) > 1 and len(blocks) + between + max(blocks) <= _WORTHWHILE * stage
