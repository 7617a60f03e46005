"""How a block is called: what a run without checkpointing shows of the arguments that checkpointing depends on.

Observes; which of it explains a fault is said in `causes`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ckpt_surgery.measure.meter import Meter
from ckpt_surgery.model_patches.vocabulary import is_past_state
from ckpt_surgery.runtime.call_arguments import is_cache, name_at, positional_names
from ckpt_surgery.runtime.containers import identities, items, tensors
from ckpt_surgery.runtime.rng import devices_of, generator_state


@dataclass(frozen=True, slots=True)
class CallFacts:
    """What the calls of one block have shown, all calls together. Names are those of the block's parameters.

    `keyword_gradient` are tensors with gradient given by keyword (leaves, such as parameters, do not count),
    `container_gradient` arguments with such tensors inside a tuple, list, dictionary or dataclass,
    `positional_past` caches given by position, `returned` arguments that the block handed back as they were,
    `written` containers that it wrote into, and `nested_output` tells whether it returned a tensor with gradient
    inside an inner container. `fed` tells whether every call had a tensor with gradient among its positional
    arguments themselves, `random` whether randomness was drawn. `reached` counts the calls that the backward came
    back through: only those have anything to recompute.
    """

    keyword_gradient: tuple[str, ...] = ()
    container_gradient: tuple[str, ...] = ()
    positional_past: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    nested_output: bool = False
    fed: bool = True
    random: bool = False
    reached: int = 0


class CallObserver:
    """A context manager that notes the calls of `blocks` in a forward, and tells `meter` where they begin and end."""

    def __init__(self, blocks: Mapping[str, nn.Module], meter: Meter) -> None:
        self._blocks = blocks
        self._meter = meter
        self._facts: dict[str, CallFacts] = {}
        self._calls = 0
        self._reached: dict[str, set[int]] = {}  # numbers of calls
        self._devices = tuple({device for block in blocks.values() for device in devices_of(block)})
        self._open: list[_Call] = []
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> CallObserver:
        for name, block in self._blocks.items():
            before, after = partial(self._before, name), partial(self._after, name)
            self._handles.append(block.register_forward_pre_hook(before, prepend=True, with_kwargs=True))
            self._handles.append(block.register_forward_hook(after, always_call=True))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """See no more: what is called in the backward is a recompute."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def facts(self) -> dict[str, CallFacts]:
        """What was seen so far, by block; blocks that were not called are missing."""
        return {n: replace(facts, reached=len(self._reached.get(n, ()))) for n, facts in self._facts.items()}

    def _before(self, name: str, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        names = positional_names(block.forward)
        positional = {name_at(names, place): value for place, value in enumerate(args)}
        self._open.append(_Call(positional, dict(kwargs), self._devices))
        self._meter.enter_block(name, tensors((args, kwargs)))

    def _after(self, name: str, block: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._meter.leave_block(tensors(output))
        call = self._open.pop()
        self._calls += 1
        self._watch(name, self._calls, call.made(output))
        facts = call.facts(output)
        earlier = self._facts.get(name)
        self._facts[name] = facts if earlier is None else _both(earlier, facts)

    def _watch(self, name: str, call: int, made: list[Tensor]) -> None:
        """Notice when the backward comes to one of these results of a call."""

        def reached(_: Tensor) -> None:
            self._reached.setdefault(name, set()).add(call)

        for tensor in made:
            if tensor.requires_grad:
                tensor.register_hook(reached)  # type: ignore[no-untyped-call]


class _Call:
    """One call between its beginning and its end."""

    def __init__(
        self, positional: dict[str, Any], keywords: dict[str, Any], devices: tuple[torch.device, ...]
    ) -> None:
        self.positional = positional
        self.keywords = keywords
        self.devices = devices
        self.random_state = generator_state(devices)
        self.contents = {n: identities(v) for n, v in self.arguments.items() if isinstance(v, (dict, list))}

    @property
    def arguments(self) -> dict[str, Any]:
        return self.positional | self.keywords

    def made(self, output: Any) -> list[Tensor]:
        """The tensors of `output` that the call was not given."""
        given = {id(tensor) for tensor in tensors((self.positional, self.keywords))}
        return [tensor for tensor in tensors(output) if id(tensor) not in given]

    def facts(self, output: Any) -> CallFacts:
        given = {id(value): name for name, value in self.arguments.items() if isinstance(value, Tensor)}
        returned = [given[id(tensor)] for tensor in tensors(output) if id(tensor) in given]
        inner = [value for _, value in items(output) if not isinstance(value, Tensor)]
        return CallFacts(
            keyword_gradient=tuple(n for n, v in self.keywords.items() if isinstance(v, Tensor) and _carries(v)),
            container_gradient=tuple(
                n for n, v in self.arguments.items() if not isinstance(v, Tensor) and _any_gradient(v)
            ),
            positional_past=tuple(
                n for n, v in self.positional.items() if v is not None and (is_past_state(n) or is_cache(v))
            ),
            returned=tuple(dict.fromkeys(returned)),
            written=tuple(n for n, ids in self.contents.items() if identities(self.arguments[n]) != ids),
            nested_output=_any_gradient(inner),
            fed=any(isinstance(v, Tensor) and v.requires_grad for v in self.positional.values()),
            random=self.random_state != generator_state(self.devices),
        )


def _carries(tensor: Tensor) -> bool:
    """Whether gradient goes on from this tensor. A leaf, such as a parameter, gets its own wherever it is used."""
    return tensor.requires_grad and not tensor.is_leaf


def _any_gradient(value: Any) -> bool:
    return any(map(_carries, tensors(value)))


def _both(first: CallFacts, second: CallFacts) -> CallFacts:
    merged: dict[str, Any] = {}
    for field in dataclasses.fields(CallFacts):
        one, other = getattr(first, field.name), getattr(second, field.name)
        if field.name == "fed":
            merged["fed"] = one and other
        else:
            merged[field.name] = (
                (one or other) if isinstance(one, (bool, int)) else tuple(dict.fromkeys((*one, *other)))
            )
    return CallFacts(**merged)
