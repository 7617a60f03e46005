"""The empty cache that `verify` passes to a model, to see what checkpointing does with it.

Its argument is found by role. The run without checkpointing has to fill it, since a cache that stays empty shows
nothing.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from torch import nn

from ckpt_surgery.measure.arguments import positional_key
from ckpt_surgery.measure.kinds import SkipKind
from ckpt_surgery.measure.record import RunRecord
from ckpt_surgery.measure.results import Skip
from ckpt_surgery.measure.setup import Setup
from ckpt_surgery.model_patches.release_names import CACHE_ARGUMENT, CACHE_SWITCH
from ckpt_surgery.model_patches.vocabulary import PAST_STATE
from ckpt_surgery.runtime.blocks.library_switch import takes_switch

_STANDARD_CACHE = re.compile(r"\b(?:Dynamic|EncoderDecoder)?Cache\b")
_ANY_CACHE = re.compile(r"Cache\b")


@dataclass(frozen=True, slots=True)
class GivenCache:
    """The arguments of a model for empty caches, and the run without checkpointing that filled them."""

    arguments: tuple[str, ...]
    make: Callable[[], Any]
    switch: Mapping[str, Any]
    record: RunRecord

    def inputs(self) -> dict[str, Any]:
        """Make the extra inputs of a run: new caches, and the switch that makes the model fill them."""
        return {**{name: self.make() for name in self.arguments}, **self.switch}


def given_cache(setup: Setup, reference: RunRecord) -> GivenCache | Skip | None:
    """Fill a cache without checkpointing; None if callers can pass none, or have passed one that the model fills.

    A skip says why none is filled although the model may take one. `reference` is a run without checkpointing.
    """
    is_off = getattr(getattr(setup.model, "config", None), CACHE_SWITCH, None) is False
    if is_off or any(after > before for before, after, _ in reference.cache.values()):
        return None
    parameters: Mapping[str, inspect.Parameter] = inspect.signature(setup.model.forward).parameters
    passes_on = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    if passes_on and not _arguments_for_caches(parameters):  # then those of the inner model count as well
        inner = (module for module in setup.model.modules() if module is not setup.model and takes_switch(module))
        inside = next(inner, setup.model)
        parameters = {**inspect.signature(inside.forward).parameters, **parameters}
    arguments = _arguments_for_caches(parameters)
    other_state = [n for n, p in parameters.items() if n in PAST_STATE or _ANY_CACHE.search(_annotation(p))]
    switch = CACHE_SWITCH if CACHE_SWITCH in parameters else ""
    if not (arguments or other_state or switch):
        return None
    if not arguments:
        return Skip(("state",), SkipKind.NO_CACHE_ARGUMENT, {"arguments": ", ".join(other_state) or switch})
    makers = _makers(setup.model)
    if not makers:
        details = {"argument": arguments[0], "error": "transformers makes none for its configuration"}
        return Skip(("state",), SkipKind.NO_CACHE, details)
    error = ""
    positions = {
        name: positional_key(index) for index, name in enumerate(inspect.signature(setup.model.forward).parameters)
    }
    switches: list[dict[str, Any]] = [{}, {switch: True}] if switch else [{}]
    together = [tuple(arguments)] if len(arguments) > 1 else []
    for names, switched, make in product([*together, *((name,) for name in arguments)], switches, makers):
        keys = tuple(key if (key := positions.get(name, name)) in setup.inputs else name for name in names)
        given = GivenCache(keys, make, switched, reference)
        record = setup.run(None, **given.inputs())
        if record.error is None and any(after > before for before, after, _ in record.cache.values()):
            return replace(given, record=record)
        error = error or str(record.error or "")
    details = {"argument": arguments[0], "error": error or "it stays empty"}
    return Skip(("state",), SkipKind.CACHE_NOT_TAKEN, details)


def _arguments_for_caches(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    """List the arguments that take a `Cache`, by name first and then by annotation."""
    named = [name for name in CACHE_ARGUMENT if name in parameters]
    return named + [n for n, p in parameters.items() if _STANDARD_CACHE.search(_annotation(p)) and n not in named]


def _annotation(parameter: inspect.Parameter) -> str:
    annotation = parameter.annotation
    if annotation is inspect.Parameter.empty:
        return ""
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _makers(model: nn.Module) -> list[Callable[[], Any]]:
    """List functions that make empty caches for a model, the likeliest first; empty if transformers can make none."""
    config = getattr(model, "config", None)

    def plain() -> Any:
        from transformers import DynamicCache

        return DynamicCache(config=config)

    def of_decoder() -> Any:
        from transformers import DynamicCache, EncoderDecoderCache

        return EncoderDecoderCache(DynamicCache(), DynamicCache())

    makers = [of_decoder, plain] if getattr(config, "is_encoder_decoder", False) else [plain]
    usable = []
    for make in makers:
        with suppress(Exception):  # no transformers, or a configuration without a number of layers
            make()
            usable.append(make)
    return usable
