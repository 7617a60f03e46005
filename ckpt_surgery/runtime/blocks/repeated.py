"""Find blocks by repetition, whatever their names: for models that do not come from transformers.

`discovery` is stricter, because `verify` calls a block that does not checkpoint a fault. Here a block only has to be
worth checkpointing: `wrap_blocks` gets the gradients right in any case.
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
    count_leaves,
    enclosing,
    is_layer,
    is_torch_layer,
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
"""If at least this share of a stack repeats, the rest are blocks too, such as one of another class in between."""
_SINGLE_LAYER_SHARE = 0.5
"""A `Sequential` with a smaller share of single layers is a stack, as in ConvMixer, and not a block."""

_Likeness = tuple[type[nn.Module], ...]
"""Equal for modules that are alike: their class, and for a `Sequential` the classes of what it holds."""


def repeated_blocks(model: nn.Module, found: Iterable[Block]) -> tuple[Block, ...]:
    """List the blocks in the stacks of `model` besides those in `found`: stages, and also the blocks in them.

    Modules are blocks if their class occurs twice in the model and holds at least `MODEL_SHARE` of its parameters. The
    other modules of their stack are blocks too if most of it repeats, and so is every module of a stack whose owner
    checkpoints by itself. Modules in or around checkpointing layers are left out, and so are towers of transformers
    with blocks in `found`, except stacks that their owner runs by an inline branch.
    """
    modules = dict(model.named_modules())
    towers = {tower_of(block.name, modules) for block in found}
    layers = {name for name, module in modules.items() if is_layer(module)}
    around_layers = layers | {outer for name in layers for outer in enclosing(name)}
    stacks: dict[str, list[str]] = {}
    for stack, elements in stacks_of(modules):
        tower = tower_of(stack, modules)
        # an inline branch is switched off as a whole, so all blocks that its module runs have to be found
        is_found = tower in towers and hasattr(tower, CLAIM)
        covered = is_found and not has_inline_branch(modules[owner_of(stack, modules)])
        attribute = stack.rpartition(".")[2]
        if not covered and layers.isdisjoint((stack, *enclosing(stack))) and not BESIDE_OTHERS.search(attribute):
            stacks[stack] = [name for name, _ in elements if name not in around_layers]
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
    counts: Counter[_Likeness] = Counter()
    sizes: Counter[_Likeness] = Counter()
    for names in members.values():
        for name in names:
            # one module may stand at every index of its stack, as in ALBERT, to share weights
            holder, likeness = modules[name.rpartition(".")[0]], _likeness(modules[name])
            counts[likeness] += max(1, sum(child is modules[name] for child in holder._modules.values()))
            sizes[likeness] += size_of(modules[name])
    least = MODEL_SHARE * size_of(model)
    repeated = {likeness for likeness, count in counts.items() if count > 1 and sizes[likeness] >= least}
    blocks = []
    for stack, names in members.items():
        alike = [name for name in names if _likeness(modules[name]) in repeated]
        mostly = len(alike) >= _MOST_OF_A_STACK * len(names)
        whole = mostly or checkpoints_itself(modules[owner_of(stack, modules)])
        blocks += [Block(name, modules[name], "plain", stack) for name in (names if whole else alike)]
    return tuple(blocks)


def why_no_blocks(model: nn.Module) -> str:
    """Explain, as the end of a sentence, why a model has no blocks."""
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
    return f"what its lists repeat ({some(repeated)}) holds less than {MODEL_SHARE:.0%} of its parameters"


def _may_be_block(stack: str, module: nn.Module) -> bool:
    kind, facts = class_of(module), facts_of(module)
    if stack.rpartition(".")[2] in facts.not_stacks or kind.__name__ in facts.not_blocks:
        return False
    if kind is nn.Sequential:
        parts = list(module.children())
        single = [is_torch_layer(type(part)) and not any(part.children()) for part in parts]
        return len(parts) > 1 and sum(single) >= _SINGLE_LAYER_SHARE * len(parts)
    if isinstance(module, torch.jit.ScriptModule) or kind.forward is nn.Module.forward:  # it cannot be wrapped, or run
        return False
    if issubclass(kind, (nn.RNNBase, nn.RNNCellBase)):  # a single layer that keeps its gates for every step
        return True
    return not (is_torch_layer(kind) or BESIDE_OTHERS.search(kind.__name__) or count_leaves(module) < _FEWEST_LEAVES)


def _likeness(module: nn.Module) -> _Likeness:
    kind = class_of(module)
    return (kind, *map(type, module.children())) if kind is nn.Sequential else (kind,)
