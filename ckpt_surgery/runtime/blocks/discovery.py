"""The blocks of a live model: its checkpointing layers, and the plain modules that should be checkpointing layers.

Looks at modules only; nothing is run or changed.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    _CHECKPOINT_WRAPPED_MODULE,
    ActivationWrapper,
    CheckpointWrapper,
)
from torch.nn.parameter import is_lazy

from ckpt_surgery.model_patches.vocabulary import is_no_block, mixes_positions
from ckpt_surgery.runtime.tools.classes import class_of, descends, facts_of

Kind = Literal["layer", "plain"]

CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
TORCH_BLOCKS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
"""The classes of torch itself that are blocks."""
MODEL_SHARE = 0.05
"""Blocks that hold a smaller part of a model's parameters are not worth looking for."""
_TOWER_SHARE = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """One block: its full name, the module, the name of its stack, and the name of the block around it, if any.

    `kind` is "layer" for a `GradientCheckpointingLayer` and "plain" for a module that should be one.
    """

    name: str
    module: nn.Module
    kind: Kind
    stack: str
    inside: str = ""


def is_layer(module: nn.Module) -> bool:
    """Whether a module is a `GradientCheckpointingLayer` of whatever release of transformers."""
    return descends(type(module), "GradientCheckpointingLayer")


def find_blocks(model: nn.Module, *, unsupported: bool = False) -> tuple[Block, ...]:
    """The blocks of `model`, in its own order, nested layers included; a module with several names comes once.

    A plain block is an element of a stack that neither holds a checkpointing layer nor lies in one. Either it mixes
    positions (attention, recurrence, a state space model), or its stack is of one class and holds at least half of
    the parameters of the tower around it, embeddings left out. Besides, its stack holds at least a twentieth of the
    model's parameters. A tower that declares no support for checkpointing has no plain blocks, unless `unsupported`
    is set. Facts about single families are in `model_patches`, such as which elements of a mixed stack are blocks.
    """
    modules = dict(model.named_modules())
    layers = {name for name, module in modules.items() if is_layer(module)}
    blocks = [Block(n, modules[n], "layer", n.rpartition(".")[0], _around(n, layers)) for n in modules if n in layers]
    stacked = [block for block in _plain_blocks(model, modules, layers, unsupported) if block.name in modules]
    plain = [block for block in stacked if not _around(block.name, layers)]
    names = {block.name for block in plain}
    blocks += [block for block in plain if not _around(block.name, names)]
    order = {name: place for place, name in enumerate(modules)}
    return tuple(sorted(blocks, key=lambda block: order[block.name]))


def _around(name: str, names: set[str]) -> str:
    """The longest of `names` that is a module around the module `name`; empty where there is none."""
    return next((outer for outer in enclosing(name) if outer in names), "")


def enclosing(name: str) -> Iterator[str]:
    """The names of the modules around the module `name`, the nearest first; the whole model, "", left out."""
    while name := name.rpartition(".")[0]:
        yield name


def nearest(name: str, names: Container[str]) -> str:
    """The one of `names` that is the module `name`, or else nearest around it; "" where none is."""
    return next((around for around in (name, *enclosing(name)) if around in names), "")


def _plain_blocks(
    model: nn.Module, modules: dict[str, nn.Module], layers: set[str], unsupported: bool
) -> Iterator[Block]:
    holders = {outer for name in layers for outer in enclosing(name)}
    whole = size_of(model)
    for name, elements in stacks_of(modules):
        if name in holders or name in layers:
            continue
        tower = tower_of(name, modules)
        if not unsupported and not getattr(tower, "supports_gradient_checkpointing", True):
            continue
        blocks = [(path, part) for path, part in elements if class_of(part).__name__ in facts_of(part).blocks]
        if not blocks and (size := sum(size_of(part) for _, part in elements)) >= MODEL_SHARE * whole:
            blocks = _blocks_among(name, elements, size / max(size_of(tower), 1))
        yield from (Block(path, element, "plain", name) for path, element in blocks)


def stacks_of(modules: Mapping[str, nn.Module]) -> Iterator[tuple[str, list[tuple[str, nn.Module]]]]:
    """Every container that may be a stack, with what it holds by name; containers inside are opened.

    A dictionary often holds one stack beside other things, as `transformer` of OLMo does, or several: what lies in it
    is a stack of its own. `modules` are those of a model, by name.
    """
    for name, module in modules.items():
        around = modules.get(name.rpartition(".")[0]) if name else None
        part_of_another = isinstance(around, CONTAINERS) and not isinstance(around, nn.ModuleDict)
        if isinstance(module, CONTAINERS) and not part_of_another:
            yield name, list(_elements(name, module))


def _blocks_among(stack: str, elements: list[tuple[str, nn.Module]], share: float) -> list[tuple[str, nn.Module]]:
    """The elements of a stack that look like blocks; none where only one does."""
    alike = len({type(element) for _, element in elements}) == 1
    blocks = [
        (path, element)
        for path, element in elements
        if _may_be_block(stack, element) and (_mixes(element) or (alike and share >= _TOWER_SHARE))
    ]
    return blocks if len(blocks) > 1 else []


def _elements(name: str, container: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """What a container holds, containers inside it opened; those in a dictionary are stacks of their own."""
    for path, child in children_of(name, container):
        if not isinstance(child, CONTAINERS):
            yield path, child
        elif not isinstance(container, nn.ModuleDict):
            yield from _elements(path, child)


def children_of(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules directly in the module `name`, with their full names; those that torch wraps, not the wrappers."""
    for key, child in module.named_children():
        path = f"{name}.{key}" if name else key
        while isinstance(child, ActivationWrapper):
            path, child = f"{path}.{_CHECKPOINT_WRAPPED_MODULE}", getattr(child, _CHECKPOINT_WRAPPED_MODULE)
        yield path, child


def _may_be_block(stack: str, element: nn.Module) -> bool:
    kind, facts = class_of(element), facts_of(element)
    if stack.rpartition(".")[2] in facts.not_stacks or kind.__name__ in facts.not_blocks:
        return False
    return not is_torchs(kind) and not is_no_block(kind.__name__)


def is_wrapped(name: str, modules: Mapping[str, nn.Module]) -> bool:
    """Whether torch's `checkpoint_wrapper` is around the module `name`, and checkpoints it already."""
    return any(isinstance(modules[outer], CheckpointWrapper) for outer in enclosing(name))


def is_torchs(kind: type[nn.Module]) -> bool:
    """Whether a class is torch's own and no block: linear layers, norms, containers."""
    return kind.__module__.startswith("torch.") and kind not in TORCH_BLOCKS


def _mixes(element: nn.Module) -> bool:
    return any(mixes_positions(class_of(part).__name__) for part in element.modules())


def tower_of(name: str, modules: Mapping[str, nn.Module]) -> nn.Module:
    """The nearest pretrained model around a module; the whole model where there is none."""
    around = (modules[outer] for outer in enclosing(name))
    return next((module for module in around if hasattr(module, "supports_gradient_checkpointing")), modules[""])


def size_of(module: nn.Module) -> int:
    """Parameters of a module, embeddings left out: tiny models have large vocabularies for their size."""
    embeddings = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
    return sum(p.numel() for p in module.parameters() if id(p) not in embeddings and not is_lazy(p))
