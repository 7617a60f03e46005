"""Modules that a model repeats, whatever they are called: for models that are not transformers' own.

`verify` holds the models of transformers to what names and parameters tell of their blocks. Elsewhere it is enough
that checkpointing a module is worth its while, since the gradients are right in any case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import torch
from torch import nn

from ckpt_surgery.model_patches.vocabulary import runs_beside_others
from ckpt_surgery.runtime.blocks.discovery import (
    CONTAINERS,
    MODEL_SHARE,
    Block,
    children_of,
    enclosing,
    is_layer,
    is_torchs,
    size_of,
    stacks_of,
    tower_of,
)
from ckpt_surgery.runtime.blocks.levels import leaves
from ckpt_surgery.runtime.blocks.library_switch import checkpoints_itself
from ckpt_surgery.runtime.tools.classes import class_of, facts_of
from ckpt_surgery.text import some

_FEWEST_LEAVES = 2
"""A module with fewer keeps its input and nothing else, which is what checkpointing would keep."""
_MOST_OF_A_STACK = 0.5
_FEWEST_SIBLINGS = 3

_SINGLE_AMONG_BLOCKS = 0.5
"""A `Sequential` with a smaller part of single layers is a stack, and not a block around one, as ConvMixer has."""

_Kind = tuple[type[nn.Module], ...]
"""What makes modules alike: their class, or, for a `Sequential`, the classes of what it holds."""


def repeated_blocks(model: nn.Module, found: Iterable[Block]) -> tuple[Block, ...]:
    """What the stacks of `model` hold besides the blocks that were `found`, stages and their blocks alike.

    A module is taken if its class comes twice in the model and holds a twentieth of its parameters, or if the owner
    of the stack would checkpoint by itself what that holds; and with it the others of a stack that is mostly made of
    such. Left out are towers of transformers with blocks that were found, and what lies in or around checkpointing
    layers.
    """
    modules = dict(model.named_modules())
    towers = {tower_of(block.name, modules) for block in found}
    layers = {name for name, module in modules.items() if is_layer(module)}
    settled = layers | {outer for name in layers for outer in enclosing(name)}
    stacks: dict[str, list[str]] = {}
    for stack, _ in stacks_of(modules):
        tower = tower_of(stack, modules)
        known = tower in towers and hasattr(tower, "supports_gradient_checkpointing")
        if not known and layers.isdisjoint((stack, *enclosing(stack))) and not runs_beside_others(_attribute(stack)):
            stacks[stack] = [name for name in _members(stack, modules[stack]) if name not in settled]
    blocks = _repeated(model, modules, stacks)
    others = {block.name for block in found}
    return tuple(block for block in blocks if block.name not in others)


def repeated_siblings(model: nn.Module, fewest: int = 2) -> tuple[Block, ...]:
    """Modules of the classes of which another module holds `fewest` as attributes, `b1`, `b2`, in place of a list."""
    modules = dict(model.named_modules())
    kinds: set[type[nn.Module]] = set()
    for module in modules.values():
        if not isinstance(module, CONTAINERS):
            kinds |= {kind for kind, count in Counter(map(type, module.children())).items() if count >= fewest}
    stacks: dict[str, list[str]] = {}
    for name, module in modules.items():
        if name and type(module) in kinds:
            stacks.setdefault(name.rpartition(".")[0], []).append(name)
    return _repeated(model, modules, stacks)


def siblings_around(model: nn.Module, blocks: Iterable[Block]) -> tuple[Block, ...]:
    """The repeated attributes that hold some of `blocks`, as GoogLeNet's do. Two alike are towers as a rule."""
    around = {outer for block in blocks for outer in enclosing(block.name)}
    return tuple(block for block in repeated_siblings(model, _FEWEST_SIBLINGS) if block.name in around)


def _repeated(
    model: nn.Module, modules: Mapping[str, nn.Module], stacks: Mapping[str, Sequence[str]]
) -> tuple[Block, ...]:
    """The blocks among the members of these stacks, by name."""
    members = {
        stack: [name for name in names if name in modules and _may_be_block(_attribute(stack), modules[name])]
        for stack, names in stacks.items()
    }
    kinds: Counter[_Kind] = Counter()
    held: Counter[_Kind] = Counter()
    for names in members.values():
        for name in names:
            kinds[kind_of(modules[name])] += _places(name, modules)
            held[kind_of(modules[name])] += size_of(modules[name])
    least = MODEL_SHARE * size_of(model)
    repeated = {kind for kind, count in kinds.items() if count > 1 and held[kind] >= least}
    return tuple(
        Block(name, modules[name], "plain", stack)
        for stack, names in members.items()
        for name in _taken(names, modules, repeated, owner=modules[_owner(stack, modules)])
    )


def reason_for_none(model: nn.Module) -> str:
    """Why no module of a model counts as a block, as the end of a sentence."""
    modules = dict(model.named_modules())
    members = [modules[n] for name, _ in stacks_of(modules) for n in _members(name, modules[name]) if n in modules]
    if not members:
        return "it holds no two modules of one class side by side"
    kinds = Counter(class_of(module).__name__ for module in members if _may_be_block("", module))
    if not kinds:
        return f"its lists hold single layers ({some(_names(members))}), and checkpointing one of those frees nothing"
    repeated = [name for name, count in kinds.items() if count > 1]
    if not repeated:
        return f"no class comes twice in its lists ({some(kinds)})"
    return f"what its lists repeat ({some(repeated)}) holds less than a twentieth of its parameters"


def _places(name: str, modules: Mapping[str, nn.Module]) -> int:
    """How often a module comes in what holds it: ALBERT's way of sharing weights is one module in every place."""
    holder = modules[name.rpartition(".")[0]]
    return max(1, sum(child is modules[name] for child in holder._modules.values()))


def _names(modules: Iterable[nn.Module]) -> list[str]:
    return list(dict.fromkeys(class_of(module).__name__ for module in modules))


def _taken(
    members: Sequence[str], modules: Mapping[str, nn.Module], repeated: Collection[_Kind], owner: nn.Module
) -> Sequence[str]:
    """Those members of a stack that are blocks."""
    alike = [name for name in members if kind_of(modules[name]) in repeated]
    mostly = len(alike) >= _MOST_OF_A_STACK * len(members)
    return members if mostly or checkpoints_itself(owner) else alike


def _members(name: str, container: nn.Module) -> Iterator[str]:
    """What a container holds, and what those in it hold; of these a `Sequential` can be a block as well."""
    for path, child in children_of(name, container):
        if not isinstance(child, CONTAINERS):
            yield path
            continue
        if isinstance(child, nn.Sequential):
            yield path
        if not isinstance(container, nn.ModuleDict):
            yield from _members(path, child)


def _may_be_block(stack: str, module: nn.Module) -> bool:
    kind, facts = class_of(module), facts_of(module)
    if stack in facts.not_stacks or kind.__name__ in facts.not_blocks:
        return False
    if kind is nn.Sequential:
        parts = list(module.children())
        single = [is_torchs(type(part)) and not any(part.children()) for part in parts]
        return len(parts) > 1 and sum(single) >= _SINGLE_AMONG_BLOCKS * len(parts)
    if isinstance(module, torch.jit.ScriptModule) or kind.forward is nn.Module.forward:  # it cannot be wrapped, or run
        return False
    if issubclass(kind, (nn.RNNBase, nn.RNNCellBase)):  # a single layer that keeps its gates for every step
        return True
    return not is_torchs(kind) and not runs_beside_others(kind.__name__) and leaves(module) >= _FEWEST_LEAVES


def kind_of(module: nn.Module) -> _Kind:
    """What a module has in common with others like it."""
    kind = class_of(module)
    return (kind, *map(type, module.children())) if kind is nn.Sequential else (kind,)


def _owner(stack: str, modules: Mapping[str, nn.Module]) -> str:
    """The name of the module whose forward runs a stack."""
    return next((name for name in enclosing(stack) if not isinstance(modules[name], CONTAINERS)), "")


def _attribute(name: str) -> str:
    return name.rpartition(".")[2]
