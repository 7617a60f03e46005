"""Count how often a block's computation is entered, in the forward and again in the backward of a step.

No single place sees every entry, so three witnesses are heard. Each can miss entries and none counts one
twice, so the largest of their counts is the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from ckpt_surgery.runtime.rng import devices_of, generator_state

FORWARD, BACKWARD = 0, 1


@dataclass(frozen=True, slots=True)
class Entries:
    """Entries into one block's computation: in the forward pass, and once more per recompute in the backward."""

    forward: int
    backward: int


@dataclass(slots=True)
class _Tally:
    """What the three witnesses of one block saw: counts by phase."""

    block: nn.Module
    called: Counter[int] = field(default_factory=Counter)
    checkpointed: Counter[int] = field(default_factory=Counter)
    parts: dict[str, Counter[int]] = field(default_factory=dict)  # in the order of their first entry
    states: dict[tuple[int, str], set[bytes]] = field(default_factory=dict)  # of the generator, by phase and witness


class EntryCounter:
    """A context manager that counts entries into `blocks`, which are modules of `model`.

    The witnesses of a block:

    - its own forward pre-hook. It sees a recompute wherever hooks run inside the checkpoint: plain modules,
      and the layers of transformers up to 5.0, whose `__call__` checkpoints;
    - the function that the block hands to its checkpointing function. It sees every recompute of a
      `GradientCheckpointingLayer` of later releases, whose wrapped `forward` keeps hooks outside;
    - the submodule of its own that is entered first. It sees a recompute where somebody replaced
      `forward`. Submodules shared with the rest of the model, or inside another checkpointed layer, do not
      count. Only entry counts: early stop skips what comes late in a recompute.

    Two cases fool them. A block without submodules whose `forward` was replaced has no witness: its recompute
    is missed. A block that checkpoints nothing but its first submodule seems to be recomputed as a whole.
    Enter it after checkpointing was enabled; the checkpointing functions are those it finds then.
    Raises ValueError where a block is not a module of `model`.
    """

    def __init__(self, model: nn.Module, blocks: Mapping[str, nn.Module]) -> None:
        self._paths = _paths(model)
        for name, block in blocks.items():
            if block not in self._paths:
                raise ValueError(f"block {name!r} ({type(block).__name__}) is not a module of {type(model).__name__}")
        self._tallies = {name: _Tally(block) for name, block in blocks.items()}
        self._devices = devices_of(model)
        self._phase = FORWARD
        self._handles: list[RemovableHandle] = []
        self._functions: list[tuple[nn.Module, dict[str, Any]]] = []

    def __enter__(self) -> EntryCounter:
        others = {tally.block for tally in self._tallies.values()}
        others |= {module for module in self._paths if hasattr(module, "_gradient_checkpointing_func")}
        for tally in self._tallies.values():
            self._hook(tally.block, partial(self._count, tally, tally.called, "block"))
            self._watch_function(tally)
            for name, part in _own_parts(tally.block, self._paths, others - {tally.block}):
                self._hook(part, partial(self._count_part, tally, name))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        for module, attributes in self._functions:
            vars(module).pop("_gradient_checkpointing_func", None)
            vars(module).update(attributes)

    def start_backward(self) -> None:
        """From now on an entry is a recompute."""
        self._phase = BACKWARD

    def entries(self) -> dict[str, Entries]:
        """The count of every block, under the names given at the start."""
        return {name: _decide(tally) for name, tally in self._tallies.items()}

    def other_randomness(self) -> tuple[str, ...]:
        """Blocks that were recomputed with torch's generator in a state that their forward never began with."""
        return tuple(name for name, tally in self._tallies.items() if _drifted(tally))

    def _hook(self, module: nn.Module, tick: Callable[[], None]) -> None:
        self._handles.append(module.register_forward_pre_hook(lambda _module, _arguments: tick(), prepend=True))

    def _count(self, tally: _Tally, counts: Counter[int], witness: str) -> None:
        counts[self._phase] += 1
        state = generator_state(self._devices)
        tally.states.setdefault((self._phase, witness), set()).add(state)

    def _count_part(self, tally: _Tally, name: str) -> None:
        self._count(tally, tally.parts.setdefault(name, Counter()), f"part {name}")

    def _watch_function(self, tally: _Tally) -> None:
        block = tally.block
        checkpoint = getattr(block, "_gradient_checkpointing_func", None)
        if checkpoint is None:
            return

        def watched(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            def entered(*inner_args: Any, **inner_kwargs: Any) -> Any:
                self._count(tally, tally.checkpointed, "checkpoint")
                return function(*inner_args, **inner_kwargs)

            # a block may also checkpoint pieces of itself: those are not entries into the block
            return checkpoint(entered if _runs(function, block) else function, *args, **kwargs)

        own = {k: v for k, v in vars(block).items() if k == "_gradient_checkpointing_func"}
        self._functions.append((block, own))
        vars(block)["_gradient_checkpointing_func"] = watched


def _paths(model: nn.Module) -> dict[nn.Module, list[str]]:
    paths: dict[nn.Module, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        paths.setdefault(module, []).append(path)
    return paths


def _own_parts(
    block: nn.Module, paths: Mapping[nn.Module, list[str]], others: set[nn.Module]
) -> list[tuple[str, nn.Module]]:
    """The submodules that run only as part of `block`: not shared, not in a layer that is checkpointed itself."""
    homes = tuple(f"{path}." if path else "" for path in paths[block])
    foreign = {part for other in others - _ancestors(block, paths) for part in other.modules()}
    return [
        (name, part)
        for name, part in block.named_modules()
        if part is not block and part not in foreign and all(path.startswith(homes) for path in paths[part])
    ]


def _ancestors(block: nn.Module, paths: Mapping[nn.Module, list[str]]) -> set[nn.Module]:
    parents = {path[:end] for path in paths[block] for end in range(len(path)) if path[end] == "."}
    return {module for module, places in paths.items() if not parents.isdisjoint(places) or "" in places}


def _runs(function: Callable[..., Any], block: nn.Module) -> bool:
    """Whether calling `function` runs `block`: a bound method of it, or a partial of one or of its `forward`."""
    if isinstance(function, partial):
        return (bool(function.args) and function.args[0] is block) or _runs(function.func, block)
    return function is block or getattr(function, "__self__", None) is block


def _decide(tally: _Tally) -> Entries:
    forward = max(tally.called[FORWARD], tally.checkpointed[FORWARD])
    witness = next((counts for counts in tally.parts.values() if counts[FORWARD]), None)
    # a part may run several times per entry, so its count is divided by what the forward showed
    by_part = -(-witness[BACKWARD] * forward // witness[FORWARD]) if witness else 0
    return Entries(forward, max(tally.called[BACKWARD], tally.checkpointed[BACKWARD], by_part))


def _drifted(tally: _Tally) -> bool:
    """Whether each witness that was entered in the backward saw a generator that it had not seen in the forward.

    One that checkpointing bypasses, such as a hook on a block around a checkpoint, may be entered in other states.
    """
    seen = [
        states <= tally.states.get((FORWARD, witness), set())
        for (phase, witness), states in tally.states.items()
        if phase == BACKWARD
    ]
    return bool(seen) and not any(seen)
