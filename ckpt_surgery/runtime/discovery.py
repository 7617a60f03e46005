"""The blocks of a live model: its checkpointing layers, and the plain modules that should be some.

Looks at modules only; nothing is run or changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import nn

from model_patches import family_facts
from model_patches.family import FamilyFacts
from model_patches.vocabulary import is_no_block, mixes_positions

Kind = Literal["layer", "plain"]

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
_TOWER_SHARE = 0.5
_MODEL_SHARE = 0.05


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
    return any(base.__name__ == "GradientCheckpointingLayer" for base in type(module).__mro__)


def find_blocks(model: nn.Module) -> tuple[Block, ...]:
    """The blocks of `model`, in its own order, nested layers included; a module with several names is found once.

    A plain block is an element of a stack that neither holds a checkpointing layer nor lies in one. It mixes
    positions (attention, recurrence, a state space model), or its stack is of one class and holds at least half
    of the parameters of the tower around it, embeddings left out; and the stack is no mere trifle: it holds a
    twentieth of the model's parameters. A tower that says it supports no checkpointing has none. What a family
    of models knows better stands in `model_patches`: also which elements of a mixed stack are its blocks.
    """
    modules = dict(model.named_modules())
    layers = {name for name, module in modules.items() if is_layer(module)}
    found = [Block(n, modules[n], "layer", n.rpartition(".")[0], _around(n, layers)) for n in modules if n in layers]
    stacked = [block for block in _plain_blocks(model, modules, layers) if block.name in modules]
    plain = [block for block in stacked if not _around(block.name, layers)]
    names = {block.name for block in plain}
    found += [block for block in plain if not _around(block.name, names)]
    order = {name: place for place, name in enumerate(modules)}
    return tuple(sorted(found, key=lambda block: order[block.name]))


def _around(name: str, names: set[str]) -> str:
    """The longest of `names` that is a module around the module `name`; empty where there is none."""
    end = name.rfind(".")
    while end > 0:
        if name[:end] in names:
            return name[:end]
        end = name.rfind(".", 0, end)
    return ""


def _plain_blocks(model: nn.Module, modules: dict[str, nn.Module], layers: set[str]) -> Iterator[Block]:
    holders = {name[:end] for name in layers for end in range(len(name)) if name[end] == "."}
    whole = _size(model)
    for name, module in modules.items():
        if not isinstance(module, _CONTAINERS) or name in holders or name in layers:
            continue
        if isinstance(modules.get(name.rpartition(".")[0]), _CONTAINERS):
            continue  # a part of the stack above
        tower = _tower(name, modules)
        if not getattr(tower, "supports_gradient_checkpointing", True):
            continue
        elements = list(_elements(name, module))
        known = [(path, element) for path, element in elements if type(element).__name__ in _facts(element).blocks]
        if not known and _size(module) >= _MODEL_SHARE * whole:
            known = _blocks_among(name, elements, _size(module) / max(_size(tower), 1))
        yield from (Block(path, element, "plain", name) for path, element in known)


def _blocks_among(stack: str, elements: list[tuple[str, nn.Module]], share: float) -> list[tuple[str, nn.Module]]:
    """Those elements of a stack that are blocks by what they are; none where there is only one."""
    alike = len({type(element) for _, element in elements}) == 1
    found = [
        (path, element)
        for path, element in elements
        if _may_be_block(stack, element) and (_mixes(element) or (alike and share >= _TOWER_SHARE))
    ]
    return found if len(found) > 1 else []


def _elements(name: str, container: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """What a container holds, containers inside it opened."""
    for key, child in container.named_children():
        if isinstance(child, _CONTAINERS):
            yield from _elements(f"{name}.{key}", child)
        else:
            yield f"{name}.{key}", child


def _facts(element: nn.Module) -> FamilyFacts:
    home, _, file = type(element).__module__.rpartition(".")
    return family_facts(f"{home.replace('.', '/')}/{file}.py")


def _may_be_block(stack: str, element: nn.Module) -> bool:
    kind, facts = type(element), _facts(element)
    if stack.rpartition(".")[2] in facts.not_stacks or kind.__name__ in facts.not_blocks:
        return False
    return not kind.__module__.startswith("torch.") and not is_no_block(kind.__name__)


def _mixes(element: nn.Module) -> bool:
    return any(mixes_positions(type(part).__name__) for part in element.modules())


def _tower(name: str, modules: dict[str, nn.Module]) -> nn.Module:
    """The nearest pretrained model around a module; the whole model where there is none."""
    end = name.rfind(".")
    while end > 0:
        if hasattr(modules[name[:end]], "supports_gradient_checkpointing"):
            return modules[name[:end]]
        end = name.rfind(".", 0, end)
    return modules[""]


def _size(module: nn.Module) -> int:
    """Parameters of a module, embeddings left out: tiny models have large vocabularies for their size."""
    embeddings = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
    return sum(p.numel() for p in module.parameters() if id(p) not in embeddings)
