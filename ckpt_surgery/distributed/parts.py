"""Parts of a model that matter to data parallelism: what is shared, what a step may leave out, how it checkpoints.

Looks at structure only. What follows from it is said in `ready`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import CodeType
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from ckpt_surgery.runtime.block import FUNCTION, Checkpointing
from ckpt_surgery.runtime.discovery import CONTAINERS, enclosing, find_blocks
from ckpt_surgery.runtime.native import FLAG, options_of, takes_switch


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that require gradient, each under its first name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def outer_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The blocks that lie in no other block, under every name that they have in the model."""
    outermost = {block.module for block in find_blocks(model) if not block.inside}
    return {n: module for n, module in model.named_modules(remove_duplicate=False) if module in outermost}


def shared_parameters(model: nn.Module) -> tuple[str, ...]:
    """Trainable parameters of a block that have a place in another block too, or outside of all blocks."""
    blocks = outer_blocks(model)
    names = {id(parameter): name for name, parameter in trainable(model).items()}
    places: dict[str, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in names:
            block = next((outer for outer in enclosing(name) if outer in blocks), "")
            places.setdefault(names[id(parameter)], set()).add(block)
    return tuple(name for name, among in places.items() if len(among) > 1)


def towers_of(model: nn.Module) -> tuple[str, ...]:
    """What a step of text alone may not use: the topmost modules, or parameters, of towers and projectors.

    Only trainable ones of a model of transformers that takes token ids, wants no other input, and has beside its
    text model, which takes embeddings, parts with sub-configurations of their own.
    """
    found = next(((name, module) for name, module in model.named_modules() if takes_switch(module)), None)
    if found is None:
        return ()
    root, core = found
    text, others = _text_and_other_configs(core)
    texts = [name for name, module in core.named_modules() if type(vars(module).get("config")) is text]
    towers = [name for name, module in core.named_modules() if type(vars(module).get("config")) in others]
    if not (texts and towers) or not _text_alone_will_do(core, core.get_submodule(texts[0])):
        return ()
    around = core.get_submodule(_common([texts[0], *towers]))
    kept = {id(p) for name in texts for p in core.get_submodule(name).parameters()} | _heads(core)
    inside = {id(p) for p in around.parameters()}
    modules = dict(core.named_modules())
    parts = {
        _topmost(name, modules, kept)
        for name, parameter in trainable(core).items()
        if id(parameter) in inside and id(parameter) not in kept
    }
    return tuple(f"{root}.{part}" if root else part for part in sorted(parts))


def _text_and_other_configs(core: nn.Module) -> tuple[type, set[type]]:
    """The class of the text's configuration, and those of the other parts; no others where one is for all."""
    config: Any = getattr(core, "config", None)
    try:
        text = config.get_text_config()
    except (AttributeError, ValueError):  # no text, or several
        return type(None), set()
    names: Mapping[str, Any] = getattr(config, "sub_configs", None) or {}
    parts = {type(part) for name in names if (part := getattr(config, name, None)) is not None}
    return type(text), parts - {type(text)} if text is not config else set()


def _text_alone_will_do(core: nn.Module, text: nn.Module) -> bool:
    """Whether the forward asks for token ids alone, and the text model takes the embeddings that it makes of them.

    Contrastive models, which can return their own loss, want both inputs for it.
    """
    parameters = inspect.signature(core.forward).parameters
    wanted = {n for n, p in parameters.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD}
    if "input_ids" not in parameters or "return_loss" in parameters or not wanted <= {"input_ids"}:
        return False
    return "inputs_embeds" in inspect.signature(text.forward).parameters


def _common(names: list[str]) -> str:
    """The name of the innermost module around all of `names`."""
    around = [[*reversed(list(enclosing(name)))] for name in names]
    shared = [outer for outer in around[0] if all(outer in others for others in around)]
    return shared[-1] if shared else ""


def _heads(core: nn.Module) -> set[int]:
    """The parameters of the input and the output embeddings."""
    parts = (core.get_input_embeddings(), core.get_output_embeddings())  # type: ignore[operator]
    return {id(parameter) for part in parts if part is not None for parameter in part.parameters()}


def _topmost(name: str, modules: Mapping[str, nn.Module], kept: set[int]) -> str:
    """The outermost module around a parameter that has none of the `kept` ones; the parameter where all have."""
    free = [n for n in enclosing(name) if all(id(p) not in kept for p in modules[n].parameters())]
    return free[-1] if free else name


def layers_dropped(model: nn.Module) -> tuple[str, ...]:
    """Blocks with trainable parameters in a tower that has LayerDrop."""
    modules = dict(model.named_modules())
    return tuple(
        block.name
        for block in find_blocks(model)
        if not block.inside
        and any(p.requires_grad for p in block.module.parameters())
        and _layerdrop(block.name, modules) > 0
    )


def _layerdrop(block: str, modules: Mapping[str, nn.Module]) -> float:
    """The share that is dropped by the nearest module around a block whose forward reads one."""
    for outer in (*enclosing(block), ""):
        module = modules[outer]
        code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
        for name in code.co_names if isinstance(code, CodeType) else ():
            if name.endswith("layerdrop"):
                return float(getattr(module, name, getattr(vars(module).get("config"), name, 0.0)))
    return 0.0


def experts_of(model: nn.Module) -> tuple[str, ...]:
    """Lists and dictionaries of experts, several of which have trainable parameters."""
    return tuple(
        name
        for name, module in model.named_modules()
        if isinstance(module, CONTAINERS)
        and "expert" in name.rpartition(".")[2].lower()
        and sum(any(p.requires_grad for p in child.parameters()) for child in module.children()) > 1
    )


def reentrant_modules(model: nn.Module) -> tuple[str, ...]:
    """Modules that checkpoint in reentrant mode as released. A surgery, which does not under DDP, has no flags on."""
    return tuple(
        name
        for name, module in model.named_modules()
        if getattr(module, FLAG, False)
        and (function := vars(module).get(FUNCTION)) is not None
        and _non_reentrant(function) is not function
    )


def without_reentrant(model: nn.Module) -> None:
    """Let what checkpoints in reentrant mode do so in the other one; for a model that is `left_as_found`."""
    for module in model.modules():
        function = vars(module).get(FUNCTION)
        if function is not None:
            vars(module)[FUNCTION] = _non_reentrant(function)


def _non_reentrant(function: Callable[..., Any]) -> Callable[..., Any]:
    """The checkpointing function without reentrant mode; itself where it has none, or is a foreign one."""
    if isinstance(function, Checkpointing):
        return replace(function, use_reentrant=False) if function.use_reentrant else function
    known = options_of(function)
    if known is None or known[0].get("use_reentrant") is False:
        return function
    return partial(checkpoint, **{**known[0], "use_reentrant": False})
