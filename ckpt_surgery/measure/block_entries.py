"""Count how often each block's computation is entered in a step's forward and backward, and note its state there.

No single probe sees every entry, so each block has three. A probe may miss entries but never counts one twice, so the
largest count is the right one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import nn
from torch.autograd.function import BackwardCFunction

from ckpt_surgery.errors import CkptSurgeryError, OptionError
from ckpt_surgery.measure.casting import autocast_of
from ckpt_surgery.measure.generators import devices_of
from ckpt_surgery.measure.model_hook import ModelHook, is_selective
from ckpt_surgery.measure.results import Mode
from ckpt_surgery.model_patches.release_names import FUNCTION
from ckpt_surgery.runtime.checkpoint.state import put_for
from ckpt_surgery.runtime.tools.classes import hooks_of_others
from ckpt_surgery.runtime.tools.rng import generator_state
from ckpt_surgery.torch_names import current_autograd_node, current_graph_task_id

FORWARD, BACKWARD, ASIDE, WITHIN = range(4)
"""The phases of a step; ASIDE is a forward outside of it, WITHIN a backward that the forward runs, as for forces."""
ENDLESS = 500
"""Recomputes of one call from which on a backward counts as endless: it goes round in circles, some for a night."""
HOOKS = "hooks"
AUTOCAST_STATES = ("autocast", "dtype of autocast")
"""The names of the states of a call that are not attributes."""


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries into one block's computation in the forward, and its recomputes in the backward.

    `direct` says that only the block's submodules were called and not the block, as in a model that checkpoints
    `block.forward`; both counts are then those of its submodules. `within` says that it was recomputed in a forward
    that takes gradients itself; `backward` counts those recomputes if there are no others. `selective` says that its
    checkpoint has a selective policy, which keeps some results. `parts` are the submodules that were entered in the
    backward if the block was not.
    """

    forward: int
    backward: int
    direct: bool = False
    within: bool = False
    selective: bool = False
    parts: tuple[str, ...] = ()


class EndlessBackward(CkptSurgeryError):
    """A backward that runs a block so often that it will not end."""


class CallStates:
    """The states in which calls of one module began, in the forward and in the backward of a step.

    A state is what no argument carries: autocast, hooks, plain attributes. A recompute in another state than its
    forward gives another result, or fails.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Counter[Hashable], Counter[Hashable]]] = {}

    def note(self, module: nn.Module, *, again: bool) -> None:
        """Note the state in which a call of the module begins; `again` marks a recompute."""
        states: list[tuple[str, Hashable]] = [*zip(AUTOCAST_STATES, autocast_of(module), strict=True)]
        states.append((HOOKS, tuple(map(id, hooks_of_others(module)))))
        for name, value in vars(module).items():
            if isinstance(value, str | bool) and name != "training":
                states.append((name, value))
            elif type(value) is list and all(isinstance(item, str) for item in value):
                states.append((name, tuple(value)))
        for name, state in states:
            self._seen.setdefault(name, (Counter(), Counter()))[again][state] += 1

    def differing(self) -> Iterator[str]:
        """Name the states in which recomputes do not match forwards."""
        for name, (forward, recomputes) in self._seen.items():
            unknown = any(state not in forward for state in recomputes)
            if unknown or (forward.total() == recomputes.total() and forward != recomputes):
                yield name


@dataclass(slots=True)
class _Tally:
    """The entries that the probes of one block saw, by phase."""

    block: nn.Module
    calls: Counter[int] = field(default_factory=Counter)
    checkpointed: Counter[int] = field(default_factory=Counter)
    submodules: dict[str, Counter[int]] = field(default_factory=dict)  # in the order of their first entry
    selective: bool = False
    rng_states: dict[tuple[int, str], set[bytes]] = field(default_factory=dict)  # by phase and probe
    states: dict[str, CallStates] = field(default_factory=dict)  # by submodule; "" for the block

    def entries(self) -> Entries:
        """Return the largest count of any probe, in forward and backward."""
        forward = max(self.calls[FORWARD], self.checkpointed[FORWARD])
        called = [counts for counts in self.submodules.values() if counts[FORWARD]]
        direct = bool(called) and not forward
        if direct:
            forward = min(counts[FORWARD] for counts in called)
        # A submodule may run several times per entry: scale its count by that of the forward.
        recomputes = {}
        for phase in (BACKWARD, WITHIN):
            by_submodule = -(-called[0][phase] * forward // called[0][FORWARD]) if called else 0
            # a self-check may run the submodules once more
            by_submodule = 0 if self.checkpointed[phase] else by_submodule
            recomputes[phase] = max(self.calls[phase], self.checkpointed[phase], by_submodule)
        within = bool(recomputes[WITHIN])
        backward = recomputes[BACKWARD] or min(recomputes[WITHIN], forward)
        parts = () if backward else tuple(name for name, counts in self.submodules.items() if counts[BACKWARD])
        return Entries(forward, backward, direct, within, self.selective, parts)

    def rng_differs(self) -> bool:
        """Tell whether every probe that saw a recompute saw a generator state that it never saw in the forward.

        A single probe proves nothing: one outside the checkpoint, such as a block's hook, runs before the generators
        are restored.
        """
        seen_before = [
            states <= self.rng_states.get((FORWARD, probe), set())
            for (phase, probe), states in self.rng_states.items()
            if phase == BACKWARD
        ]
        return bool(seen_before) and not any(seen_before)


class EntryCounter:
    """A context manager that counts entries into `blocks`, which are modules of `model`.

    A block is probed in three places:

    - its forward pre-hook. It sees a recompute wherever hooks run inside the checkpoint: in plain modules, and in the
      layers of transformers up to 5.22, whose `__call__` checkpoints;
    - the function that the block passes to its checkpointing function. It sees every recompute of a
      `GradientCheckpointingLayer` of later releases, whose wrapped `forward` leaves hooks outside;
    - the first submodule that is entered. It sees a recompute where `forward` was replaced. Submodules that are shared
      with the rest of the model, or lie in another checkpointed layer, are not used. Only entries count: early stop
      skips the end of a recompute.

    If a block's `forward` is called directly, its own probes see nothing, and its submodules are counted instead.

    Three cases are miscounted. A block without submodules whose `forward` was replaced or is called directly has no
    probe that sees its recompute. A block that checkpoints only its first submodule seems to be recomputed as a whole.
    A direct call counts several times if every submodule runs several times in it.

    Enable checkpointing first: the checkpointing functions are looked up on entry. `on_recompute` is called with each
    block when its recompute begins; of blocks that one checkpoint recomputes together only with the first, and never
    with a block inside another. With `states`, the states of calls and recomputes are noted (see `CallStates`).
    A block that runs `ENDLESS` times as often in the backward as in the forward ends the step with `EndlessBackward`.
    Raises OptionError if a block is not a module of `model`.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Mapping[str, nn.Module],
        on_recompute: Callable[[nn.Module], None] | None = None,
        *,
        states: bool = False,
    ) -> None:
        self._paths: dict[nn.Module, list[str]] = {}
        for path, module in model.named_modules(remove_duplicate=False):
            self._paths.setdefault(module, []).append(path)
        self._on_recompute = on_recompute
        self._notes_states = states
        self._recomputed: nn.Module | None = None
        self._region: tuple[int, int] | None = None
        for name, block in blocks.items():
            if block not in self._paths:
                raise OptionError(f"block {name!r} ({type(block).__name__}) is not a module of {type(model).__name__}")
        self._tallies = {name: _Tally(block) for name, block in blocks.items()}
        modules = {module for block in blocks.values() for module in block.modules() if module is not block}
        self._inner = modules & set(blocks.values())
        self._devices = devices_of(model)
        self._phase = FORWARD
        self._recomputing: set[type] = set()
        self._changes = ExitStack()

    def __enter__(self) -> EntryCounter:
        layers = {tally.block for tally in self._tallies.values()}
        layers |= {module for module in self._paths if hasattr(module, FUNCTION)}
        for tally in self._tallies.values():
            self._hook(tally.block, partial(self._enter, tally, "", tally.block))
            if (checkpoint := getattr(tally.block, FUNCTION, None)) is not None:
                entered = ModelHook(partial(self._count, tally, tally.checkpointed, "checkpoint"))
                counted = _CountedCheckpoint(checkpoint, tally.block, entered)
                put_for(self._changes, vars(tally.block), FUNCTION, counted)
            for name, submodule in self._exclusive_submodules(tally.block, layers - {tally.block}):
                self._hook(submodule, partial(self._enter, tally, name, submodule))
        return self

    def __exit__(self, *_: object) -> None:
        self._changes.close()

    def start_backward(self) -> None:
        """Count entries as recomputes from now on."""
        self._phase = BACKWARD

    def set_aside(self, aside: bool) -> None:
        """Ignore entries while `aside` is true: they belong to a forward that is not part of the step."""
        self._phase = ASIDE if aside else FORWARD

    def entries(self) -> dict[str, Entries]:
        """Return the entries of each block, by its name in `blocks`."""
        return {name: tally.entries() for name, tally in self._tallies.items()}

    @property
    def modes(self) -> frozenset[Mode]:
        """The modes in which recomputes may have run, judged by the graph nodes in which they began.

        A reentrant recompute begins in an autograd.Function, torch's or another. A non-reentrant one begins wherever
        the graph first needs what was not kept, which may be in such a function too.
        """
        nodes, found = self._recomputing, set[Mode]()
        if not nodes or any(issubclass(node, BackwardCFunction) for node in nodes):
            found.add("reentrant")
        if not nodes or any(node.__name__ != "CheckpointFunctionBackward" for node in nodes):
            found.add("non_reentrant")
        return frozenset(found)

    def recomputed_inside(self, name: str) -> bool:
        """Tell whether any submodule of this block was entered in the backward."""
        return any(counts[BACKWARD] for counts in self._tallies[name].submodules.values())

    def rng_mismatches(self) -> tuple[str, ...]:
        """Name the blocks whose recompute began in a state of torch's generators that no forward began in."""
        return tuple(name for name, tally in self._tallies.items() if tally.rng_differs())

    def differing_states(self) -> dict[str, str]:
        """Return, by block or submodule, the first state that differed between its forwards and its recomputes."""
        states = (
            (f"{name}.{path}".rstrip("."), s) for name, t in self._tallies.items() for path, s in t.states.items()
        )
        return {name: state for name, seen in states for state in list(seen.differing())[:1]}

    def _exclusive_submodules(self, block: nn.Module, layers: set[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
        """Yield the submodules that run only in `block`: neither shared nor in another checkpointed layer."""
        paths = self._paths[block]
        prefixes = tuple(f"{path}." if path else "" for path in paths)
        parents = {"", *(path[:end] for path in paths for end in range(len(path)) if path[end] == ".")}
        ancestors = {module for module, its_paths in self._paths.items() if not parents.isdisjoint(its_paths)}
        foreign = {submodule for layer in layers - ancestors for submodule in layer.modules()}
        for name, submodule in block.named_modules():
            exclusive = all(path.startswith(prefixes) for path in self._paths[submodule])
            if submodule is not block and submodule not in foreign and exclusive:
                yield name, submodule

    def _hook(self, module: nn.Module, count: Callable[[], None]) -> None:
        hook = ModelHook(lambda _module, _arguments: count())
        self._changes.callback(module.register_forward_pre_hook(hook, prepend=True).remove)

    def _enter(self, tally: _Tally, name: str, module: nn.Module) -> None:
        """Count a call of the block, or of a submodule by its name, and note the state in which it begins."""
        counts = tally.submodules.setdefault(name, Counter()) if name else tally.calls
        self._count(tally, counts, f"submodule {name}" if name else "block")
        if self._notes_states and self._phase in (FORWARD, BACKWARD):
            tally.states.setdefault(name, CallStates()).note(module, again=self._phase == BACKWARD)

    def _count(self, tally: _Tally, counts: Counter[int], probe: str) -> None:
        phase = WITHIN if self._phase == FORWARD and current_graph_task_id() != -1 else self._phase
        counts[phase] += 1
        tally.selective |= is_selective()
        if phase == BACKWARD:
            if counts[BACKWARD] > ENDLESS * max(counts[FORWARD], 1):
                name = type(tally.block).__name__
                raise EndlessBackward(f"{name} had run {counts[BACKWARD] - 1:,} times in it when it was stopped")
            self._recomputing.add(type(current_autograd_node()))
            self._note_recompute(tally.block)
        tally.rng_states.setdefault((phase, probe), set()).add(generator_state(self._devices))

    def _note_recompute(self, block: nn.Module) -> None:
        if self._on_recompute is None or block is self._recomputed or block in self._inner:
            return
        region = current_graph_task_id(), current_autograd_node()._sequence_nr()
        together, self._region = region == self._region, region
        self._recomputed = block
        if together:  # one checkpoint holds both
            return
        self._on_recompute(block)


class _CountedCheckpoint:
    """The checkpointing function of a block, which reports each entry. Copies hold the original function."""

    def __init__(self, checkpoint: Callable[..., Any], block: nn.Module, entered: Callable[[], None]) -> None:
        self.reentrant = getattr(checkpoint, "reentrant", False)  # wrapped blocks read it
        self.__wrapped__ = checkpoint
        self._block = block
        self.entered = entered  # called by what runs the block in tiles

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if _runs(function, self._block):  # checkpointing only a piece of the block is not an entry
            if isinstance(function, partial):
                inner = _Counted(function.func, self._block, self.entered)
                function = partial(inner, *function.args, **function.keywords)
            else:
                function = _Counted(function, self._block, self.entered)
        return self.__wrapped__(function, *args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self.__wrapped__,)


class _Counted:
    """A counted function that runs a block. Checkpointing functions read its `__self__`, also through a partial."""

    def __init__(self, function: Callable[..., Any], block: nn.Module, entered: Callable[[], None]) -> None:
        self.__wrapped__ = function
        self.__self__ = block
        self._entered = entered

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._entered()
        return self.__wrapped__(*args, **kwargs)


def _itself(value: Any) -> Any:
    return value


def _runs(function: Callable[..., Any], block: nn.Module) -> bool:
    """Tell whether `function` is the block, a method bound to it, or a partial of these or of an unbound `forward`."""
    if isinstance(function, partial):
        return (bool(function.args) and function.args[0] is block) or _runs(function.func, block)
    return function is block or getattr(function, "__self__", None) is block
