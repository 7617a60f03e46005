"""Find the modules that a model repeats, whatever their names: for models that are not transformers' own.

`verify` judges models of transformers by what names and parameters say about their blocks. Elsewhere it is enough that
checkpointing a module pays, since the gradients are right in any case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn

from ckpt_surgery.model_patches.release_names import CLAIM
from ckpt_surgery.model_patches.vocabulary import BESIDE_OTHERS
from ckpt_surgery.runtime.blocks.discovery import (
    CONTAINERS,
    MODEL_SHARE,
    Block,
    enclosing,
    is_layer,
    is_torchs,
    leaves,
    owner_of,
    size_of,
    stacks_of,
    tower_of,
)
from ckpt_surgery.runtime.blocks.library_switch import checkpoints_itself, has_inline_branch
from ckpt_surgery.runtime.tools.classes import class_of, facts_of
from ckpt_surgery.text import some

_FEWEST_LEAVES = 2
"""A module with fewer keeps its input and nothing else, which is what checkpointing would keep."""
_MOST_OF_A_STACK = 0.5

_SINGLE_AMONG_BLOCKS = 0.5
"""A `Sequential` with a smaller part of single layers is a stack, and not a block around one, as ConvMixer has."""

_Likeness = tuple[type[nn.Module], ...]
"""Equal for modules that are alike: their class, and for a `Sequential` the classes of what it holds."""


def repeated_blocks(model: nn.Module, found: Iterable[Block]) -> tuple[Block, ...]:
    """List what the stacks of `model` hold besides the blocks in `found`, both stages and their blocks.

    A module is taken if its class comes twice in the model and holds a twentieth of its parameters, or if the stack's
    owner would checkpoint the stack by itself; so are the other modules of a stack that consists mostly of such. Left
    out are towers of transformers with blocks in `found`, and what lies in or around checkpointing layers; but where a
    forward has an inline branch, which will be off, each of its stacks counts.
    """
    modules = dict(model.named_modules())
    towers = {tower_of(block.name, modules) for block in found}
    layers = {name for name, module in modules.items() if is_layer(module)}
    settled = layers | {outer for name in layers for outer in enclosing(name)}
    stacks: dict[str, list[str]] = {}
    for stack, elements in stacks_of(modules):
        tower = tower_of(stack, modules)
        # one that checkpoints by itself is switched off as a whole, so that all its blocks have to be found
        known = tower in towers and hasattr(tower, CLAIM) and not has_inline_branch(modules[owner_of(stack, modules)])
        attribute = stack.rpartition(".")[2]
        if not known and layers.isdisjoint((stack, *enclosing(stack))) and not BESIDE_OTHERS.search(attribute):
            stacks[stack] = [name for name, _ in elements if name not in settled]
    blocks = _repeated(model, modules, stacks)
    others = {block.name for block in found}
    return tuple(block for block in blocks if block.name not in others)


def repeated_siblings(model: nn.Module, fewest: int = 2) -> tuple[Block, ...]:
    """List modules of classes that a module holds at least `fewest` times as attributes (`b1`, `b2`), not in lists."""
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


def _repeated(
    model: nn.Module, modules: Mapping[str, nn.Module], stacks: Mapping[str, Sequence[str]]
) -> tuple[Block, ...]:
    members = {
        stack: [name for name in names if name in modules and _may_be_block(stack, modules[name])]
        for stack, names in stacks.items()
    }
    times: Counter[_Likeness] = Counter()
    held: Counter[_Likeness] = Counter()
    for names in members.values():
        for name in names:
            # ALBERT's way of sharing weights is one module at every index of its stack
            holder, likeness = modules[name.rpartition(".")[0]], _likeness(modules[name])
            times[likeness] += max(1, sum(child is modules[name] for child in holder._modules.values()))
            held[likeness] += size_of(modules[name])
    least = MODEL_SHARE * size_of(model)
    repeated = {likeness for likeness, count in times.items() if count > 1 and held[likeness] >= least}
    blocks = []
    for stack, names in members.items():
        alike = [name for name in names if _likeness(modules[name]) in repeated]
        mostly = len(alike) >= _MOST_OF_A_STACK * len(names)
        whole = mostly or checkpoints_itself(modules[owner_of(stack, modules)])
        blocks += [Block(name, modules[name], "plain", stack) for name in (names if whole else alike)]
    return tuple(blocks)


def reason_for_none(model: nn.Module) -> str:
    """Say at the end of a sentence why no module of a model counts as a block."""
    modules = dict(model.named_modules())
    members = [part for _, elements in stacks_of(modules) for name, part in elements if name in modules]
    if not members:
        return "it holds no two modules of one class side by side"
    classes = Counter(class_of(module).__name__ for module in members if _may_be_block("", module))
    if not classes:
        layers = some(list(dict.fromkeys(class_of(module).__name__ for module in members)))
        return f"its lists hold single layers ({layers}), and checkpointing one of those frees nothing"
    repeated = [name for name, count in classes.items() if count > 1]
    if not repeated:
        return f"no class comes twice in its lists ({some(classes)})"
    return f"what its lists repeat ({some(repeated)}) holds less than a twentieth of its parameters"


def _may_be_block(stack: str, module: nn.Module) -> bool:
    kind, facts = class_of(module), facts_of(module)
    if stack.rpartition(".")[2] in facts.not_stacks or kind.__name__ in facts.not_blocks:
        return False
    if kind is nn.Sequential:
        parts = list(module.children())
        single = [is_torchs(type(part)) and not any(part.children()) for part in parts]
        return len(parts) > 1 and sum(single) >= _SINGLE_AMONG_BLOCKS * len(parts)
    if isinstance(module, torch.jit.ScriptModule) or kind.forward is nn.Module.forward:  # it cannot be wrapped, or run
        return False
    if issubclass(kind, (nn.RNNBase, nn.RNNCellBase)):  # a single layer that keeps its gates for every step
        return True
    return not is_torchs(kind) and not BESIDE_OTHERS.search(kind.__name__) and leaves(module) >= _FEWEST_LEAVES


def _likeness(module: nn.Module) -> _Likeness:
    kind = class_of(module)
    return (kind, *map(type, module.children())) if kind is nn.Sequential else (kind,)
