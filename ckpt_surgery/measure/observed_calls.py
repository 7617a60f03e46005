"""Observe how blocks are called in a run without checkpointing: the facts on which checkpointing depends.

`causes` decides which of these facts explain a fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from ckpt_surgery.measure.generators import devices_of
from ckpt_surgery.measure.meter import Meter
from ckpt_surgery.measure.restore import identities
from ckpt_surgery.model_patches.vocabulary import PAST_STATE
from ckpt_surgery.runtime.checkpoint.call_arguments import is_cache, name_at, positional_names
from ckpt_surgery.runtime.tools.containers import hidden_tensors, items, tensors
from ckpt_surgery.runtime.tools.rng import generator_state
from ckpt_surgery.undo import UndoableHooks


@dataclass(frozen=True, slots=True)
class CallFacts:
    """The facts about all calls of one block. Tuples hold names of the block's parameters.

    Attributes:
        keyword_gradient: tensors that carry gradient and were passed by keyword. Leaves, such as parameters, do not
            count.
        container_gradient: arguments with such tensors inside a tuple, list, dictionary or dataclass.
        positional_past: past state passed by position.
        returned: arguments that the block returned unchanged.
        mutated: dictionaries and lists that the block wrote into.
        written: tensors that the block wrote into, and that it does not return.
        nested_output: whether a tensor that carries gradient was returned inside a container in the output.
        input_requires_grad: whether a positional argument of every call was itself a tensor that requires gradient.
        uses_rng: whether a call advanced a random number generator of torch.
        backward_calls: the number of calls that the backward passed through; only those can be recomputed.
        leaks: whether a tensor that a call created was used outside without being returned.
    """

    keyword_gradient: tuple[str, ...] = ()
    container_gradient: tuple[str, ...] = ()
    positional_past: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()
    mutated: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    nested_output: bool = False
    input_requires_grad: bool = True
    uses_rng: bool = False
    backward_calls: int = 0
    leaks: bool = False

    def with_call(self, other: CallFacts) -> CallFacts:
        """Return the facts about these calls and another one together."""
        merged: dict[str, Any] = {}
        for field in fields(self):
            ours, theirs = getattr(self, field.name), getattr(other, field.name)
            merged[field.name] = tuple(dict.fromkeys(ours + theirs)) if isinstance(ours, tuple) else ours or theirs
        every_call = self.input_requires_grad and other.input_requires_grad
        return CallFacts(**{**merged, "input_requires_grad": every_call})


class CallMarker(UndoableHooks):
    """A context manager that marks the start and end of the calls of `blocks` in a forward on `meter`.

    It ends before the backward, so that recomputes are not taken for calls.
    """

    def __init__(self, blocks: Mapping[str, nn.Module], meter: Meter) -> None:
        super().__init__()
        self._blocks = blocks
        self._meter = meter
        self.given_shapes: dict[str, Mapping[str, torch.Size]] = {}
        """The shapes of the tensors that the first call of each block was given, by block and parameter."""
        self.without_gradient: tuple[str, ...] = ()
        """The block that was called first, by name, if no tensor that it was given requires gradient."""

    def __enter__(self) -> Self:
        for name, block in self._blocks.items():
            before, after = partial(self._before, name), partial(self._after, name)
            self._handles.append(block.register_forward_pre_hook(before, prepend=True, with_kwargs=True))
            self._handles.append(block.register_forward_hook(after, always_call=True, with_kwargs=True))
        return self

    def _before(self, name: str, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name not in self.given_shapes:
            arguments = _by_position(block, args) | kwargs
            if not self.given_shapes and not any(tensor.requires_grad for tensor in tensors((args, kwargs))):
                self.without_gradient = (name,)
            self.given_shapes[name] = {n: v.shape for n, v in arguments.items() if isinstance(v, Tensor)}
        self._meter.enter_block(name, tensors((args, kwargs)))

    def _after(self, name: str, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self._meter.leave_block(tensors((output, args, kwargs)))  # what it puts into an argument, it returns


class CallObserver(CallMarker):
    """A marker that also observes how blocks are called, in a run without checkpointing."""

    def __init__(self, blocks: Mapping[str, nn.Module], meter: Meter) -> None:
        super().__init__(blocks, meter)
        self._facts: dict[str, CallFacts] = {}
        self._calls = 0
        self._backward_calls: dict[str, set[int]] = {}  # block name to call numbers
        self._devices = tuple({device for block in blocks.values() for device in devices_of(block)})
        self._running: list[_BlockCall] = []

    def __enter__(self) -> Self:
        for name, block in self._blocks.items():
            for path, part in block.named_modules():
                if part is not block and any(part.children()):
                    enter = partial(self._enter_part, f"{name}.{path}")
                    self._handles.append(part.register_forward_pre_hook(enter))
                    self._handles.append(part.register_forward_hook(self._leave_part, always_call=True))
        return super().__enter__()

    def _enter_part(self, name: str, _part: nn.Module, _arguments: object) -> None:
        self._meter.part_stack.append(name)

    def _leave_part(self, _part: nn.Module, _arguments: object, _output: object) -> None:
        self._meter.part_stack.pop()

    def facts(self) -> dict[str, CallFacts]:
        """Return the facts so far, by the names of the blocks that were called."""
        return {
            name: replace(
                facts, backward_calls=len(self._backward_calls.get(name, ())), leaks=name in self._meter.leaking_blocks
            )
            for name, facts in self._facts.items()
        }

    def _before(self, name: str, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._running.append(_BlockCall(_by_position(block, args), dict(kwargs), self._devices))
        super()._before(name, block, args, kwargs)

    def _after(self, name: str, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        super()._after(name, block, args, kwargs, output)
        call = self._running.pop()
        self._calls += 1
        self._hook_backward(name, self._calls, call.new_tensors(output))
        facts = call.facts(output)
        self._facts[name] = self._facts[name].with_call(facts) if name in self._facts else facts

    def _hook_backward(self, name: str, call: int, results: list[Tensor]) -> None:
        def reached(_: Tensor) -> None:
            self._backward_calls.setdefault(name, set()).add(call)

        for tensor in results:
            if tensor.requires_grad:
                tensor.register_hook(reached)  # type: ignore[no-untyped-call]


class _BlockCall:
    """One call of a block, from its start to its end."""

    def __init__(
        self, positional: dict[str, Any], keywords: dict[str, Any], devices: tuple[torch.device, ...]
    ) -> None:
        self.positional = positional
        self.keywords = keywords
        self.devices = devices
        self.rng_state = generator_state(devices)
        self.contents = {n: identities(v) for n, v in self.arguments.items() if isinstance(v, (dict, list))}
        self.cached = self._cached()
        self.carrying = tuple(
            n for n, v in self.arguments.items() if not isinstance(v, Tensor) and any(map(_carries, tensors(v)))
        )
        self.versions = {
            n: v._version for n, v in self.arguments.items() if isinstance(v, Tensor) and not v.is_inference()
        }

    @property
    def arguments(self) -> dict[str, Any]:
        return self.positional | self.keywords

    def new_tensors(self, output: Any) -> list[Tensor]:
        """List the tensors in `output`, and in caches among the arguments, that the call created."""
        given = {id(tensor) for tensor in (*tensors((self.positional, self.keywords)), *self.cached)}
        return [tensor for tensor in (*tensors(output), *self._cached()) if id(tensor) not in given]

    def _cached(self) -> list[Tensor]:
        return [tensor for value in self.arguments.values() if is_cache(value) for tensor in hidden_tensors(value)]

    def facts(self, output: Any) -> CallFacts:
        given = {id(value): name for name, value in self.arguments.items() if isinstance(value, Tensor)}
        returned = [given[id(tensor)] for tensor in tensors(output) if id(tensor) in given]
        inner = [value for _, value in items(output) if not isinstance(value, Tensor)]
        return CallFacts(
            keyword_gradient=tuple(n for n, v in self.keywords.items() if isinstance(v, Tensor) and _carries(v)),
            container_gradient=self.carrying,
            positional_past=tuple(
                n for n, v in self.positional.items() if v is not None and (n in PAST_STATE or is_cache(v))
            ),
            returned=tuple(dict.fromkeys(returned)),
            mutated=tuple(n for n, ids in self.contents.items() if identities(self.arguments[n]) != ids),
            written=tuple(
                n for n, v in self.versions.items() if self.arguments[n]._version != v and n not in returned
            ),
            nested_output=any(map(_carries, tensors(inner))),
            input_requires_grad=any(isinstance(v, Tensor) and v.requires_grad for v in self.positional.values()),
            uses_rng=self.rng_state != generator_state(self.devices),
        )


def _by_position(block: nn.Module, args: tuple[Any, ...]) -> dict[str, Any]:
    names = positional_names(block.forward)
    return {name_at(names, index): value for index, value in enumerate(args)}


def _carries(tensor: Tensor) -> bool:
    """Tell whether gradient flows on through this tensor. A leaf gets its gradient wherever it is."""
    return tensor.requires_grad and not tensor.is_leaf
