"""Find the blocks of a live model: its checkpointing layers, and plain modules that should be such layers.

Modules are only looked at: nothing is run or changed.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import nn
from torch.nn.parameter import is_lazy

from ckpt_surgery.model_patches.release_names import CLAIM, LAYER_CLASS
from ckpt_surgery.model_patches.vocabulary import MIXERS, NO_BLOCKS
from ckpt_surgery.runtime.tools.classes import class_of, descends, facts_of
from ckpt_surgery.torch_names import CHECKPOINT_WRAPPED_MODULE, ActivationWrapper, is_compiled

CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
TORCH_BLOCKS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
"""The classes of torch itself that are blocks."""
MODEL_SHARE = 0.05
"""The least share of a model's parameters in a stack of blocks: checkpointing a smaller one would free little."""
_TOWER_SHARE = 0.5
"""The least share of its tower's parameters in a stack whose elements are blocks whatever they compute."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """One block: its full name, the module, the name of its stack, and the name of the block around it, if any.

    `kind` is "layer" for a `GradientCheckpointingLayer` and "plain" for a module that should be one.
    """

    name: str
    module: nn.Module
    kind: Literal["layer", "plain"]
    stack: str
    inside: str = ""


def is_layer(module: nn.Module) -> bool:
    """Tell whether a module is a `GradientCheckpointingLayer` of any release of transformers."""
    return descends(type(module), LAYER_CLASS)


def find_blocks(model: nn.Module, *, unsupported: bool = False) -> tuple[Block, ...]:
    """List the blocks of `model` in its order, nested layers included; a module with several names is listed once.

    A plain block is an element of a stack that neither holds a checkpointing layer nor lies in one. Either it mixes
    positions (attention, recurrence, a state space model), or its stack is of one class and holds at least half of
    the parameters of the tower around it, embeddings left out. In both cases the stack holds at least `MODEL_SHARE` of
    the model's parameters. A tower that declares no support for checkpointing has plain blocks only if `unsupported`
    is set. `model_patches` decides for single families, for example which elements of a mixed stack are blocks.
    """
    modules = dict(model.named_modules())
    layers = {name for name, module in modules.items() if is_layer(module)}
    blocks = [Block(n, modules[n], "layer", n.rpartition(".")[0], around(n, layers)) for n in modules if n in layers]
    stacked = [block for block in _plain_blocks(model, modules, layers, unsupported) if block.name in modules]
    plain = [block for block in stacked if not around(block.name, layers)]
    names = {block.name for block in plain}
    blocks += [block for block in plain if not around(block.name, names)]
    order = {name: index for index, name in enumerate(modules)}
    return tuple(sorted(blocks, key=lambda block: order[block.name]))


def enclosing(name: str) -> Iterator[str]:
    """Yield the names of the modules around the module `name`, the nearest first, without the whole model, ""."""
    while name := name.rpartition(".")[0]:
        yield name


def compiled_place(model: nn.Module, blocks: Collection[str]) -> str | None:
    """Say where a model is compiled: " in" and the name of the module around or inside `blocks`, or "" for the whole.

    None if no block is compiled, as part or whole; without `blocks`, any compiled part of the model counts.
    """
    for name, module in model.named_modules():
        if is_compiled(module):
            holders = {outer for block in blocks for outer in (block, *enclosing(block))}
            if not name or not blocks or name in holders or not set(blocks).isdisjoint(enclosing(name)):
                return f" in {name}" if name else ""
    return None


def around(name: str, names: Container[str]) -> str:
    """Return the nearest of `names` around the module `name`; "" if there is none."""
    return next((outer for outer in enclosing(name) if outer in names), "")


def nearest(name: str, names: Container[str]) -> str:
    """Return the module `name` itself if it is among `names`, or else the one `around` it."""
    return name if name in names else around(name, names)


def owner_of(name: str, modules: Mapping[str, nn.Module]) -> str:
    """Name the module whose forward runs the module `name`: the nearest one around it that is not a container."""
    return next((outer for outer in enclosing(name) if not isinstance(modules[outer], CONTAINERS)), "")


def _plain_blocks(
    model: nn.Module, modules: dict[str, nn.Module], layers: set[str], unsupported: bool
) -> Iterator[Block]:
    holders = {outer for name in layers for outer in enclosing(name)}
    whole = size_of(model)
    for name, held in stacks_of(modules):
        if name in holders or name in layers:
            continue
        elements = [(inner, part) for inner, part in held if not isinstance(part, CONTAINERS)]
        tower = tower_of(name, modules)
        if not unsupported and not getattr(tower, CLAIM, True):
            continue
        blocks = [(inner, part) for inner, part in elements if class_of(part).__name__ in facts_of(part).blocks]
        if not blocks and (size := sum(size_of(part) for _, part in elements)) >= MODEL_SHARE * whole:
            alike = len({type(part) for _, part in elements}) == 1 and size >= _TOWER_SHARE * max(size_of(tower), 1)
            blocks = [(inner, part) for inner, part in elements if _looks_like_block(name, part, alike=alike)]
            blocks = blocks if len(blocks) > 1 else []
        yield from (Block(inner, part, "plain", name) for inner, part in blocks)


def _looks_like_block(stack: str, element: nn.Module, *, alike: bool) -> bool:
    """Tell whether an element of a stack is a block; if all are `alike`, it need not mix positions."""
    kind, facts = class_of(element), facts_of(element)
    if stack.rpartition(".")[2] in facts.not_stacks or kind.__name__ in facts.not_blocks:
        return False
    if is_torch_layer(kind) or NO_BLOCKS.search(kind.__name__):
        return False
    return alike or any(MIXERS.search(class_of(part).__name__) for part in element.modules())


def stacks_of(modules: Mapping[str, nn.Module]) -> Iterator[tuple[str, list[tuple[str, nn.Module]]]]:
    """Yield every container that may be a stack, with the modules that it holds by name.

    Containers inside are opened; a `Sequential` is also listed itself, since it can be a block. But a container inside
    a `ModuleDict` is a stack of its own: a dictionary often holds several stacks, or one beside other modules, as
    `transformer` of OLMo does. `modules` are those of a model, by name.
    """
    for name, module in modules.items():
        holder = modules.get(name.rpartition(".")[0]) if name else None
        part_of_another = isinstance(holder, CONTAINERS) and not isinstance(holder, nn.ModuleDict)
        if isinstance(module, CONTAINERS) and not part_of_another:
            yield name, list(_elements(name, module))


def _elements(name: str, container: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for key, child in container.named_children():
        inner = f"{name}.{key}" if name else key
        while isinstance(child, ActivationWrapper):
            inner, child = f"{inner}.{CHECKPOINT_WRAPPED_MODULE}", getattr(child, CHECKPOINT_WRAPPED_MODULE)
        if not isinstance(child, CONTAINERS) or isinstance(child, nn.Sequential):
            yield inner, child
        if isinstance(child, CONTAINERS) and not isinstance(container, nn.ModuleDict):  # else stacks of their own
            yield from _elements(inner, child)


def is_torch_layer(kind: type[nn.Module]) -> bool:
    """Tell whether a class is one of torch that is not a block: a linear layer, a norm, a container."""
    return kind.__module__.startswith("torch.") and kind not in TORCH_BLOCKS


def tower_of(name: str, modules: Mapping[str, nn.Module]) -> nn.Module:
    """Return the nearest pretrained model around a module, or the whole model if there is none."""
    outside = (modules[outer] for outer in enclosing(name))
    return next((module for module in outside if hasattr(module, CLAIM)), modules[""])


def size_of(module: nn.Module) -> int:
    """Count a module's parameters, embeddings left out: in tiny models these would outweigh everything else."""
    embeddings = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
    return sum(p.numel() for p in module.parameters() if id(p) not in embeddings and not is_lazy(p))


def count_leaves(module: nn.Module) -> int:
    """Estimate how many tensors a module keeps for its backward: one per leaf, and one per parameter elsewhere."""
    own = sum(1 for part in module.modules() if not any(part.children()) and not isinstance(part, nn.Identity))
    parents = (part for part in module.modules() if any(part.children()))
    return own + sum(1 for part in parents for _ in part.parameters(recurse=False))
