"""Find the options with which a script asked its library for checkpointing, and call `wrap_blocks` with them."""

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

    Raises SurgeryError as `wrap_blocks` does, and where checkpointing is on in layers that no option names.
    """
    chosen: dict[str, Any] = _chosen_layers(model)
    more: dict[str, Any] = {}
    for function in [function for module in model.modules() if (function := vars(module).get(FUNCTION))]:
        given = options_of(function) or options_of(inspect.unwrap(function))  # a function around torch's has its own
        if given is not None:
            more, offload = given
            chosen |= {"offload": offload} if offload else {}
            chosen |= {name: more.pop(name) for name in _FOR_WRAPPING if name in more}
            break
    surgery = wrap_blocks(model, **{**chosen, **options})
    if more:
        surgery.enable(model, partial(checkpoint, **more))
    return surgery


def _chosen_layers(model: nn.Module) -> dict[str, Any]:
    stacks: dict[str, list[bool]] = defaultdict(list)
    for name, module in model.named_modules():
        if is_layer(module):
            stacks[name.rpartition(".")[0]].append(bool(getattr(module, FLAG, False)))
    chosen: dict[str, Any] = {}
    for stack, on in stacks.items():
        if any(on) and not all(on):
            every = (n for n in range(2, len(on) + 1) if on == [index % n == 0 for index in range(len(on))])
            every_n = next(every, 0)
            if not every_n or chosen.get("every_n", every_n) != every_n:
                raise SurgeryError(
                    f"{type(model).__name__} has checkpointing on in {sum(on)} of {len(on)} layers of {stack}, and "
                    "not in every n-th: it was left as it is, and can be wrapped with stacks, blocks or first"
                )
            chosen["every_n"] = every_n
    return chosen


def is_asked(model: nn.Module) -> bool:
    """Tell whether checkpointing is switched on anywhere in a model in its library's way."""
    return any(getattr(module, flag) for module in model.modules() for flag in flags_of(module))
