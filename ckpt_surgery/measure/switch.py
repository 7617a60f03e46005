"""Switch checkpointing on or off, in whichever way a model has.

That is the method of the installed transformers, of diffusers or of timm, or the surgery of `wrap_blocks`.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from ckpt_surgery.errors import OptionTypeError, VerifyError
from ckpt_surgery.measure.results import Mode
from ckpt_surgery.model_patches.release_names import (
    CLAIM,
    DIFFUSERS_CLAIM,
    DIFFUSERS_FUNCTION,
    DIFFUSERS_SWITCH,
    DIFFUSERS_SWITCH_OFF,
    FUNCTION,
    INPUT_GRADIENTS,
    SWITCH_OFF,
    SWITCH_ON,
    SWITCH_OPTIONS,
    TIMM_SWITCH,
    known_name,
)
from ckpt_surgery.runtime.blocks.discovery import Block, enclosing, find_blocks, is_layer
from ckpt_surgery.runtime.checkpoint.block_forward import BlockForward
from ckpt_surgery.runtime.selective.save_policy import SavePolicy
from ckpt_surgery.runtime.surgery.surgery import SURGERY, Surgery


class NoSuchModeError(OptionTypeError):
    """The model's library has a single mode of checkpointing, and this is another."""


Switch = Callable[[nn.Module, Mode | None], None]
"""Switches checkpointing on in a mode, or off with None."""


def switch_of(model: nn.Module) -> Switch:
    """Return the function that switches a model's checkpointing. Raises VerifyError where there is none."""
    operated = has_surgery(model)
    # one that still claims no support would fail with what transformers' method does besides
    claims = getattr(model, CLAIM, True) or not operated
    both = _method(model, SWITCH_ON) is not None and (not operated or _method(model, SWITCH_OFF) is not None)
    if claims and both:  # sentence-transformers has no method to switch it off
        return switch_checkpointing
    if operated:
        return _switch_surgery
    if hasattr(model, DIFFUSERS_SWITCH) and getattr(model, DIFFUSERS_CLAIM, True):
        return _switch_diffusers
    if hasattr(model, TIMM_SWITCH):
        return _switch_timm
    raise VerifyError(
        f"{type(model).__name__} has no method to switch checkpointing on: call wrap_blocks on it first, or give "
        "switch=, a function of the model and the mode, which is None for off"
    )


def as_it_stands(model: nn.Module, checkpointing: Mode | None) -> None:
    """Leave checkpointing as it is: the caller has switched it."""


def switch_checkpointing(model: nn.Module, checkpointing: Mode | None) -> None:
    """Switch checkpointing on in the given mode, or off, by the method of the installed transformers.

    Late releases also make the outputs of embeddings require gradient when it is switched on. The run without
    checkpointing must differ in nothing else, so they still do after it is switched off here.

    Raises OptionTypeError where there is no method to switch it on; errors of that method pass through.
    """
    if checkpointing is not None:
        enable = _method(model, SWITCH_ON)
        if enable is None:
            name = type(model).__name__
            raise OptionTypeError(f"{name} has no method gradient_checkpointing_enable to switch checkpointing on")
        # options with which it already checkpoints in this mode stay, such as contexts of its recompute
        functions = (vars(module).get(FUNCTION) for module in model.modules())
        given = next((f.keywords for f in functions if isinstance(f, partial) and f.func is checkpoint), {})
        reentrant = checkpointing == "reentrant"
        options = {**(given if given.get("use_reentrant") == reentrant else {}), "use_reentrant": reentrant}
        keyword = known_name(SWITCH_OPTIONS, inspect.signature(enable).parameters)
        enable(options) if keyword is None else enable(**{keyword: options})
        return
    disable = _method(model, SWITCH_OFF)
    if disable is None:
        return
    # releases differ in whether they refuse to switch on, and off, what no module of the model has
    with contextlib.suppress(Exception):
        switch_checkpointing(model, "non_reentrant")
    with contextlib.suppress(ValueError):
        disable()
    if getattr(model, "_hf_peft_config_loaded", False):  # then those outputs were set back
        getattr(model, INPUT_GRADIENTS)()


def _switch_surgery(model: nn.Module, checkpointing: Mode | None) -> None:
    if checkpointing is None:
        for _, block in _surgical_blocks(model):
            vars(block)[FUNCTION] = None


def has_surgery(model: nn.Module) -> bool:
    """Tell whether `wrap_blocks` checkpoints blocks of a model, or did until it was switched off."""
    return any(_surgical_blocks(model))


def policies_of(model: nn.Module) -> list[SavePolicy]:
    """List the policies of the option `save` of `wrap_blocks` on the blocks of a model."""
    policies = (vars(block)["forward"].options.policy for _, block in _surgical_blocks(model))
    return list({id(policy): policy for policy in policies if policy is not None}.values())


def blocks_of(model: nn.Module) -> dict[str, Block]:
    """Find the blocks of a model by name; where it has a surgery, its blocks and not the modules around them.

    Blocks that the options of the surgery leave out, by `every_n` or `stacks` for example, are not among them.
    """
    operated = dict(_surgical_blocks(model))
    around = {outer for name in operated for outer in enclosing(name)}
    blocks = {
        block.name: block for block in find_blocks(model, unsupported=bool(operated)) if block.name not in around
    }
    for name, module in operated.items():
        blocks[name] = Block(name, module, "layer" if is_layer(module) else "plain", name.rpartition(".")[0])
    left_out: set[str] = set()  # by surgeries that are switched on
    for path, module in model.named_modules():
        surgery = vars(module).get(SURGERY)
        if isinstance(surgery, Surgery) and surgery.checkpointing is not None:
            within = (block for stack in surgery.stacks for block in stack.blocks)
            left_out |= {f"{path}.{b.name}" if path else b.name for b in within if not surgery.checkpoints(b)}
    return {name: blocks[name] for name, _ in model.named_modules() if name in blocks and name not in left_out}


def _surgical_blocks(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    named = model.named_modules()
    return ((name, module) for name, module in named if isinstance(vars(module).get("forward"), BlockForward))


def _switch_diffusers(model: nn.Module, checkpointing: Mode | None) -> None:
    if checkpointing is None:
        getattr(model, DIFFUSERS_SWITCH_OFF)()
        return
    takes_function = DIFFUSERS_FUNCTION in inspect.signature(getattr(model, DIFFUSERS_SWITCH)).parameters
    if not takes_function and checkpointing == "reentrant":
        raise NoSuchModeError(
            f"{type(model).__name__}.{DIFFUSERS_SWITCH} takes no function, so that there is no other mode"
        )
    function = partial(checkpoint, use_reentrant=checkpointing == "reentrant")
    getattr(model, DIFFUSERS_SWITCH)(*([function] if takes_function else []))


def _switch_timm(model: nn.Module, checkpointing: Mode | None) -> None:
    if checkpointing == "reentrant":
        raise NoSuchModeError(f"{type(model).__name__}.{TIMM_SWITCH} has no reentrant mode")
    getattr(model, TIMM_SWITCH)(checkpointing is not None)


def _method(model: nn.Module, role: tuple[str, ...]) -> Callable[..., Any] | None:
    return next((getattr(model, name) for name in role if hasattr(model, name)), None)
