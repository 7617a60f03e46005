"""Find the options with which a script switched its library's checkpointing on, and call `wrap_blocks` with them."""

from __future__ import annotations

import inspect
from collections import defaultdict
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.model_patches.release_names import FLAG, FUNCTION
from ckpt_surgery.runtime.blocks.discovery import is_layer
from ckpt_surgery.runtime.blocks.library_switch import flags_of, options_of
from ckpt_surgery.runtime.surgery.surgery import Surgery
from ckpt_surgery.runtime.surgery.wrap import wrap_blocks

_FOR_WRAPPING = ("use_reentrant", "preserve_rng_state", "context_fn")


def wrap_as_asked(model: nn.Module, **options: Any) -> Surgery:
    """Call `wrap_blocks` with the options of the script's own checkpointing; `options` take precedence.

    Raises SurgeryError as `wrap_blocks` does, and if checkpointing is on in layers that no option selects.
    """
    wrap_options: dict[str, Any] = _layer_options(model)
    torch_options: dict[str, Any] = {}
    for function in [function for module in model.modules() if (function := vars(module).get(FUNCTION))]:
        # a wrapper of torch's function may have its own options
        given = options_of(function) or options_of(inspect.unwrap(function))
        if given is not None:
            torch_options, offload = given
            wrap_options |= {"offload": offload} if offload else {}
            wrap_options |= {name: torch_options.pop(name) for name in _FOR_WRAPPING if name in torch_options}
            break
    surgery = wrap_blocks(model, **{**wrap_options, **options})
    if torch_options:
        surgery.enable(model, partial(checkpoint, **torch_options))
    return surgery


def _layer_options(model: nn.Module) -> dict[str, Any]:
    """Return the option that selects the layers with checkpointing on: none for whole stacks, else `every_n`."""
    stacks: dict[str, list[bool]] = defaultdict(list)
    for name, module in model.named_modules():
        if is_layer(module):
            stacks[name.rpartition(".")[0]].append(bool(getattr(module, FLAG, False)))
    options: dict[str, Any] = {}
    for stack, on in stacks.items():
        if any(on) and not all(on):
            every = (n for n in range(2, len(on) + 1) if on == [index % n == 0 for index in range(len(on))])
            every_n = next(every, 0)
            if not every_n or options.get("every_n", every_n) != every_n:
                raise SurgeryError(
                    f"{type(model).__name__} has checkpointing on in {sum(on)} of {len(on)} layers of {stack}, and "
                    "not in every n-th: it was left as it is, and can be wrapped with stacks, blocks or first"
                )
            options["every_n"] = every_n
    return options


def is_asked(model: nn.Module) -> bool:
    """Tell whether checkpointing is switched on anywhere in a model in its library's way."""
    return any(getattr(module, flag) for module in model.modules() for flag in flags_of(module))
