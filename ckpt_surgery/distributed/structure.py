"""Find in a model's structure what matters to data parallelism: what is shared, skipped or checkpointed.

Nothing is run. `ready` draws the conclusions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import CodeType
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from ckpt_surgery.errors import DistributedError
from ckpt_surgery.model_patches.release_names import FUNCTION
from ckpt_surgery.runtime.blocks.discovery import CONTAINERS, enclosing, find_blocks
from ckpt_surgery.runtime.blocks.library_switch import options_of, takes_switch

_TEXT_INPUTS = ("input_ids", "inputs_embeds", "input_embeds", "hidden_states", "inputs", "args")
"""The names of inputs that may come from token ids."""


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that require gradient, each under its first name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def outer_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """Return the blocks that are not inside other blocks, under every name that they have in the model."""
    outermost = {block.module for block in find_blocks(model) if not block.inside}
    return {n: module for n, module in model.named_modules(remove_duplicate=False) if module in outermost}


def shared_parameters(model: nn.Module) -> tuple[str, ...]:
    """Name the trainable parameters of a block that are used in another block too, or outside of all blocks."""
    blocks = outer_blocks(model)
    names = {id(parameter): name for name, parameter in trainable(model).items()}
    places: dict[str, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in names:
            block = next((outer for outer in enclosing(name) if outer in blocks), "")
            places.setdefault(names[id(parameter)], set()).add(block)
    return tuple(name for name, users in places.items() if len(users) > 1)


def check_module(model: object, caller: str) -> None:
    """Raise DistributedError if `model`, which `caller` was given, is not a module."""
    if not isinstance(model, nn.Module):
        raise DistributedError(f"{caller}: the model is of type {type(model).__name__}: give a torch.nn.Module")


def towers_of(model: nn.Module) -> tuple[str, ...]:
    """Name what a text-only step may not use: the topmost modules, or parameters, of towers and projectors.

    Only trainable ones, of a model of transformers that takes token ids and requires no other input. Its towers are
    the parts beside its text model with sub-configurations of their own or, if one configuration serves all, the
    models inside it that take no text.
    """
    outermost = next(((name, module) for name, module in model.named_modules() if takes_switch(module)), None)
    if outermost is None:
        return ()
    root, core = outermost
    parameters = inspect.signature(core.forward).parameters
    required = {n for n, p in parameters.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD}
    # contrastive models, which have `return_loss`, need both inputs for their loss
    if "input_ids" not in parameters or "return_loss" in parameters or not required <= {"input_ids"}:
        return ()
    # the class of the text's configuration, and those of the other parts; none if one configuration serves all
    config: Any = getattr(core, "config", None)
    text: Any = config
    with suppress(AttributeError, ValueError):  # it has no text, or several
        text = config.get_text_config()
    others: set[type] = set()
    if text is not config:
        names: Mapping[str, Any] = getattr(config, "sub_configs", None) or {}
        others = {type(part) for name in names if (part := getattr(config, name, None)) is not None} - {type(text)}
    parts = _beside_text(core, type(text), others) if others else _of_other_inputs(core)
    return tuple(f"{root}.{part}" if root else part for part in sorted(parts))


def _beside_text(core: nn.Module, text: type, others: set[type]) -> set[str]:
    """Name the topmost modules, or parameters, that the text model does not use, by configurations."""
    texts = [name for name, module in core.named_modules() if type(vars(module).get("config")) is text]
    towers = [name for name, module in core.named_modules() if type(vars(module).get("config")) in others]
    if not (texts and towers) or not _takes(core.get_submodule(texts[0]), "inputs_embeds"):
        return set()
    shared = next(
        (outer for outer in enclosing(texts[0]) if all(outer in enclosing(tower) for tower in towers)), ""
    )  # the innermost module around all text models and towers
    around = core.get_submodule(shared)
    kept = {id(p) for name in texts for p in core.get_submodule(name).parameters()} | _heads(core)
    inside = {id(p) for p in around.parameters()}
    modules = dict(core.named_modules())
    topmost = set()  # the outermost module around each parameter that has none of the kept, or else the parameter
    for name, parameter in trainable(core).items():
        if id(parameter) in inside and id(parameter) not in kept:
            free = [n for n in enclosing(name) if all(id(p) not in kept for p in modules[n].parameters())]
            topmost.add(free[-1] if free else name)
    return topmost


def _of_other_inputs(core: nn.Module) -> set[str]:
    """Name the outermost models inside that take nothing of the text. Projectors around them are not found."""
    models: dict[str, nn.Module] = {}
    for name, module in core.named_modules():
        other = takes_switch(module) and not _takes(module, *_TEXT_INPUTS)
        if other and models.keys().isdisjoint(enclosing(name)):
            models[name] = module
    kept = _heads(core)  # a model with embeddings takes text, whatever it calls its input
    return {n for n, module in models.items() if trainable(module) and kept.isdisjoint(map(id, module.parameters()))}


def _takes(module: nn.Module, *names: str) -> bool:
    return not inspect.signature(module.forward).parameters.keys().isdisjoint(names)


def _heads(core: nn.Module) -> set[int]:
    """Return the ids of the parameters of the input and the output embeddings."""
    parts: list[Any] = []
    for find in (core.get_input_embeddings, core.get_output_embeddings):
        with suppress(NotImplementedError):  # some families do not say
            parts.append(find())  # type: ignore[operator]
    return {id(parameter) for part in parts if isinstance(part, nn.Module) for parameter in part.parameters()}


def layers_dropped(model: nn.Module) -> tuple[str, ...]:
    """Name the blocks with trainable parameters in a tower with LayerDrop; its lists if it has no block."""
    # the share of its layers that a module drops, if its forward reads such a rate
    rates: dict[str, float] = {}
    for name, module in model.named_modules():
        code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
        read = code.co_names if isinstance(code, CodeType) else ()
        if (field := next((n for n in read if n.endswith("layerdrop")), None)) is not None:
            rates[name] = float(getattr(module, field, getattr(vars(module).get("config"), field, 0.0)))
    blocks = [
        (block, next((outer for outer in enclosing(block.name) if outer in rates), ""))
        for block in find_blocks(model)
        if not block.inside
    ]
    with_blocks = {tower for _, tower in blocks}
    dropped = [block.name for block, tower in blocks if rates.get(tower, 0.0) > 0 and trainable(block.module)]
    for name, rate in rates.items():
        if rate > 0 and name not in with_blocks:
            lists = ((n, m) for n, m in model.get_submodule(name).named_children() if isinstance(m, CONTAINERS))
            dropped += [f"{name}.{child}" if name else child for child, module in lists if trainable(module)]
    return tuple(dropped)


def experts_of(model: nn.Module) -> tuple[str, ...]:
    """Name the lists and dictionaries of experts, several of which have trainable parameters."""
    return tuple(
        name
        for name, module in model.named_modules()
        if isinstance(module, CONTAINERS)
        and "expert" in name.rpartition(".")[2].lower()
        and sum(any(p.requires_grad for p in child.parameters()) for child in module.children()) > 1
    )


def reentrant_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module, Callable[..., Any]]]:
    """Yield by name the modules that checkpoint in reentrant mode, each with its function without that mode.

    They do so while their flag is on. Blocks of a surgery are never checkpointed in that mode.
    """
    for name, module in model.named_modules():
        function = vars(module).get(FUNCTION)
        given = None if function is None else options_of(function)
        if given is not None and given[0].get("use_reentrant") is not False:
            options, _ = given
            yield name, module, partial(checkpoint, **{**options, "use_reentrant": False})
