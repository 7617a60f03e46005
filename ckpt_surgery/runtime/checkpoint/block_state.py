"""What a block's forward reads and leaves behind besides tensors, so that a recompute starts and ends where it should.

That is everything on the block's own modules (attributes, buffers, parameters, training modes), what mutable objects
in its attributes hold, and generators that torch's checkpointing does not restore. All of it is noted before a call
and put back for the recompute, whoever changed it since: the block itself, a later call of it, or somebody else.

Noting must cost little, for it is done in every call. Attributes are compared by identity with those of the call
before, and tensors by their count of writes. Tensors are copied only where one watched call has shown that the block
writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Set
from contextlib import ExitStack, contextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter, is_, itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from ckpt_surgery.runtime.blocks.library_switch import is_recorder
from ckpt_surgery.runtime.checkpoint.module_dictionaries import (
    UNWATCHED,
    DictionaryCopies,
    Role,
    Space,
    differing,
    identical,
    put,
    spaces_of,
)
from ckpt_surgery.runtime.contents import SMALL, CannotRestore, Contents, substituted, without_graph
from ckpt_surgery.runtime.context_variables import Values, held_in, hold, set_since
from ckpt_surgery.runtime.outer_variables import outer_variables
from ckpt_surgery.runtime.self_check.fingerprints import bits_of
from ckpt_surgery.runtime.tools.attention_kernels import allowing_kernels, attention_kernels
from ckpt_surgery.runtime.tools.classes import descends, is_sharded
from ckpt_surgery.runtime.tools.containers import PLAIN, tensors
from ckpt_surgery.runtime.tools.rng import GeneratorStates, drawn_since, generator_states, set_generator_states
from ckpt_surgery.runtime.tools.tensors import copy_of, is_plain, same_bits, version, versions

Key = tuple[nn.Module, str]
"""A module of a block, and the name of a parameter, a buffer or an attribute of it."""

_hooks_of = itemgetter("_forward_hooks", "_forward_pre_hooks")
_trains: Callable[[Tensor], bool] = attrgetter("requires_grad")

_MOST_WATCHED = 64 * 2**20
"""Bytes of a frozen parameter that is copied in the call that is watched, in case the block writes it."""


@dataclass(slots=True)
class _Watched:
    """A parameter or buffer, in the dictionary of its module."""

    key: Key
    home: dict[str, Any]
    tensor: Tensor
    is_buffer: bool
    is_small_buffer: bool
    """A copy of it costs next to nothing."""
    may_be_written: bool
    """The block itself may write it. What requires gradient is written by optimizers alone."""
    bits: Tensor | None = None
    """What the bits of a large buffer add up to: a write that changes nothing, as a broadcast, is none."""

    @classmethod
    def of(cls, module: nn.Module, home: dict[str, Any], name: str) -> _Watched:
        """The parameter or buffer of this name in `home`, one of the two dictionaries of a module."""
        tensor: Tensor = home[name]
        plain, buffer = is_plain(tensor) and not tensor.requires_grad, home is module._buffers
        return cls(
            (module, name),
            home,
            tensor,
            buffer,
            buffer and plain and tensor.numel() <= SMALL,
            plain and (buffer or tensor.nbytes <= _MOST_WATCHED),
        )


@dataclass(slots=True)
class Entry:
    """What was there when a call began.

    `attributes` are the dictionaries of all modules, which `spaces` tell apart; `versions` and `trainable` tell how
    often each of the `watched` parameters and buffers was written, and whether it requires gradient; `tensors` are
    copies of those that the block may write, by their places among `watched`; `contents` what `roots`, the objects in
    attributes, held.
    """

    attributes: DictionaryCopies
    spaces: list[Space]
    watched: list[_Watched]
    own_tensors: list[Tensor]
    """The parameters and buffers of the block."""
    versions: list[int]
    trainable: list[bool]
    tensors: dict[int, Tensor]
    roots: list[tuple[Key, Any]]
    contents: Contents
    kernels: tuple[bool, ...]
    drawn: GeneratorStates | None
    context: Context | None
    """The context variables, in a call that is watched, until it ends."""
    variables: Values
    """Those that the block sets, with what they held."""
    cut: dict[int, tuple[Key, Tensor]]
    """What stands in for tensors with a graph in attributes, by their ids."""
    held: Set[int]
    """The ids of the tensors without a graph that are attributes; `attributes` keep them alive."""
    writes_nothing: bool = False
    """Whether the call set no attribute, buffer or parameter."""

    def is_there(self, tensor: Tensor) -> bool:
        """Whether an attribute, or an object in one, held this very tensor when the call began."""
        return id(tensor) in self.held or self.contents.holds(tensor)


class BlockState:
    """The state that one block reads and writes. `written` grows with every call that writes something new."""

    def __init__(self, block: nn.Module) -> None:
        self._block = block
        self.written: set[Key] = set()
        self.written_arguments: set[str] = set()
        """The arguments whose objects the block writes."""
        self.constant: set[Key] = set()
        """The written attributes that hold no tensor with gradient, such as tables that are made once."""
        self.tables: set[tuple[Any, ...]] = set()
        """Where observed submodules are given a tensor that the call has not made, as a table of a Python module."""
        self.traced = False
        """Whether `constant` and `tables` are known."""
        self._draws = False
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        kept = ("_block", "written", "written_arguments", "constant", "tables", "traced", "_draws")
        return {name: value for name, value in vars(self).items() if name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()

    def _forget(self) -> None:
        self.known = False
        """Whether a call was watched with the present modules, parameters, buffers and training modes."""
        self._modules: list[nn.Module] = []
        self._seen: DictionaryCopies | None = None
        self._spaces: list[Space] = []
        self._watched: list[_Watched] = []
        self._tensors: list[Tensor] = []
        """Those of `_watched`."""
        self._own_forwards: set[nn.Module] = set()
        """The modules that have a forward besides that of their class."""
        self._attributes: list[dict[str, Any]] = []
        """Those of `_modules`."""
        self.parameters: list[tuple[str, nn.Parameter]] = []
        """The parameters of the block as of the last entry, by their names there."""
        self.buffers: frozenset[int] = frozenset()
        """The ids of its buffers as of the last entry."""
        self._roots: list[tuple[Key, Any]] = []
        self._cut: dict[int, tuple[Key, Tensor]] = {}
        self._held: set[int] = set()
        self._to_copy: tuple[Any, list[int]] = (None, [])
        self._recorded = False
        self._variables: set[ContextVar[Any]] = set()
        """The context variables that the block sets."""

    def observed(self) -> tuple[nn.Module, ...]:
        """The modules inside the block at which somebody else may look: they have a hook, or another forward."""
        if not self._own_forwards and not any(chain.from_iterable(map(_hooks_of, self._attributes))):
            return ()
        seen = [m for m in self._modules if m._forward_hooks or m._forward_pre_hooks or m in self._own_forwards]
        return tuple([module for module in seen if module is not self._block])

    def entry(self, *, watching: bool) -> Entry:
        """Note what is there before a call. With `watching`, and in calls that nothing is known of, all is copied."""
        attributes = self._seen
        if attributes is None or not attributes.still_hold():
            attributes = self._look()
        everything = not self.known
        copied = {place: copy_of(self._tensors[place]) for place in self._places_to_copy()}
        return Entry(
            attributes,
            self._spaces,
            self._watched,
            self._tensors,
            versions(self._tensors),
            list(map(_trains, self._tensors)),
            copied,
            self._roots,
            Contents(self._roots, written=self.written, copy_all=everything) if self._roots else _NOTHING,
            attention_kernels(),
            generator_states() if everything or watching or self._draws else None,
            copy_context() if everything or watching else None,
            held_in(copy_context(), self._variables) if self._variables else {},
            self._cut,
            self._held,
        )

    def learn(self, entry: Entry) -> set[Key]:
        """What the call that began with `entry` has written: attributes, buffers, and roots of contents.

        Drops from the entry what no recompute needs. Raises CannotRestore where the call cannot be run again.
        """
        written = _set_since(entry)
        entry.writes_nothing = not written
        if entry.contents:
            entry.contents.check_generators()
            written |= {key for key in entry.contents.changed() if isinstance(key, tuple)}
        for place, copied in entry.tensors.items():
            now = entry.watched[place]
            if version(now.tensor) != entry.versions[place] or (not self.known and not same_bits(copied, now.tensor)):
                written.add(now.key)
        self.written |= written
        entry.tensors = {
            place: kept
            for place, kept in entry.tensors.items()
            if entry.watched[place].key in self.written or entry.watched[place].is_small_buffer
        }
        if not self.known:
            for watched in entry.watched:
                if watched.is_buffer and not watched.is_small_buffer and watched.key not in self.written:
                    watched.bits = bits_of(watched.tensor)
        if entry.drawn is not None:
            self._draws = self._draws or drawn_since(entry.drawn)
            entry.drawn = entry.drawn if self._draws else None
        self._learn_variables(entry)
        entry.context = None  # it may lead to results
        self.known = True
        return written

    def _learn_variables(self, entry: Entry) -> None:
        if entry.context is not None:
            self._variables |= set_since(entry.context)
            entry.variables = held_in(entry.context, self._variables)

    def is_as_at(self, entry: Entry) -> bool:
        """Whether all is as it was at `entry`, and the call that began there left it so."""
        return (
            entry.writes_nothing
            and not entry.tensors
            and not entry.contents
            and entry.drawn is None
            and not entry.variables
            and entry.attributes.still_hold()
            and versions(entry.own_tensors) == entry.versions
            and list(map(_trains, entry.own_tensors)) == entry.trainable
            and entry.kernels == attention_kernels()
        )

    @contextmanager
    def as_at_entry(self, entry: Entry, *, keeping: Collection[Key] = (), spare: bool = False) -> Iterator[None]:
        """A call inside sees and writes the state of `entry`; afterwards the state is as it is now.

        What is in `keeping` is as it is now inside, too. With `spare` the call writes into copies even where nothing
        has been written since, as it has in a recompute. Raises CannotRestore where a tensor was written since, and
        there is no copy of it.
        """
        with ExitStack() as stack:
            now = entry.attributes.copies
            if not entry.attributes.still_hold():
                now = [dict(held) for held in entry.attributes.dicts]
                for space, before in zip(entry.spaces, entry.attributes.copies, strict=True):
                    if not (space.role is Role.PARAMETERS and _is_managed(space.home)):
                        put(space.held, before, {name for home, name in keeping if home is space.home})
            stack.callback(_put_back, entry.attributes, now)
            self._put_tensors(entry, stack, spare=spare)
            stand_ins = stack.enter_context(entry.contents.restored(spare=spare)) if entry.contents else {}
            for (module, name), value in entry.roots if stand_ins else ():
                if name in vars(module):
                    vars(module)[name] = substituted(value, stand_ins)
            if entry.kernels != attention_kernels():
                stack.enter_context(allowing_kernels(entry.kernels))
            if entry.drawn is not None:
                stack.callback(set_generator_states, generator_states())
                set_generator_states(entry.drawn)
            self._learn_variables(entry)  # the call may not have ended
            if entry.variables:
                stack.callback(hold, held_in(copy_context(), entry.variables))
                hold(entry.variables)
            yield

    def _put_tensors(self, entry: Entry, stack: ExitStack, *, spare: bool) -> None:
        """Put copies in the places of tensors that were written, and let all require gradient as they did."""
        now = versions(entry.own_tensors)
        if entry.tensors or now != entry.versions:
            for place, watched in enumerate(entry.watched):
                was_written = now[place] != entry.versions[place]
                kept = entry.tensors.get(place)
                if kept is not None and (spare or was_written or not self.known or watched.key in self.written):
                    watched.home[watched.key[1]] = _like(watched.tensor, copy_of(kept))
                elif was_written:
                    self._check_written(watched)
        if list(map(_trains, entry.own_tensors)) != entry.trainable:
            for watched, trainable in zip(entry.watched, entry.trainable, strict=True):
                if watched.tensor.requires_grad != trainable and watched.tensor.is_leaf:
                    stack.callback(watched.tensor.requires_grad_, watched.tensor.requires_grad)
                    watched.tensor.requires_grad_(trainable)

    def _check_written(self, watched: _Watched) -> None:
        """Raise CannotRestore, unless what was written is what was there."""
        if _is_managed(watched.key[0]):
            return
        if watched.bits is not None and bool(watched.bits == bits_of(watched.tensor)):
            return
        if watched.may_be_written:
            self.written.add(watched.key)  # so that it is copied from now on
        raise CannotRestore(watched.key, "was modified in place after the forward")

    def _look(self) -> DictionaryCopies:
        """Read the modules of the block again."""
        modules = [m for m in self._block.modules() if not isinstance(m, torch.jit.ScriptModule)]
        spaces = [space for module in modules for space in spaces_of(module)]
        dicts = [space.held for space in spaces]
        seen = self._seen
        if seen is not None and len(dicts) == len(seen.dicts) and all(map(is_, dicts, seen.dicts)):
            before = seen.copies
            changed = [place for place, held in enumerate(dicts) if not identical(held, before[place])]
        else:
            before = [{} for _ in dicts]
            changed = list(range(len(dicts)))
        self.known = self.known and not any(
            (spaces[place].home, name) not in self.written
            for place in changed
            for name in differing(dicts[place], before[place])
            if spaces[place].decides(name)
        )
        copies = list(before)  # entries hold the list of their time
        self._recorded = False
        for place in changed:
            copies[place] = dict(dicts[place])
            if is_recorder(copies[place].get("forward")):  # it holds what it has recorded, with the graph
                copies[place]["forward"] = None
                self._recorded = True
        if any(spaces[place].role in (Role.PARAMETERS, Role.MODULES) for place in changed):
            self.parameters = list(self._block.named_parameters())
        self._modules, self._spaces = modules, spaces
        self._attributes = list(map(vars, modules))
        self._own_forwards = {module for module in modules if "forward" in vars(module)} - {self._block}
        self.buffers = frozenset([id(tensor) for module in modules for tensor in module._buffers.values()])
        self._watch_tensors()
        copies = self._find_roots(copies)
        self._seen = DictionaryCopies(
            dicts, copies, [space.names() for space in spaces], replaced=bool(self._cut) or self._recorded
        )
        return self._seen

    def _places_to_copy(self) -> list[int]:
        """The tensors that the next call may write, by their places among those that are watched."""
        depends_on = self.known, len(self.written)
        if self._to_copy[0] != depends_on:
            places = [
                place
                for place, w in enumerate(self._watched)
                if w.key in self.written or w.is_small_buffer or (not self.known and w.may_be_written)
            ]
            self._to_copy = depends_on, places
        return self._to_copy[1]

    def _watch_tensors(self) -> None:
        bits = {w.key: (w.tensor, w.bits) for w in self._watched}
        self._watched = []
        self._to_copy = None, []
        for module in self._modules:
            for home in (module._parameters, module._buffers):
                for name, tensor in home.items():
                    if tensor is not None:
                        watched = _Watched.of(module, home, name)
                        before = bits.get(watched.key)
                        watched.bits = before[1] if before is not None and before[0] is tensor else None
                        self._watched.append(watched)
        self._tensors = [watched.tensor for watched in self._watched]

    def _find_roots(self, copies: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Find the attributes that hold something that can be written, and cut the graphs of tensors in others."""
        self._cut, self._held = {}, set()
        values: list[tuple[Key, Any]] = []
        for space, copy in zip(self._spaces, copies, strict=True):
            if space.role is not Role.ATTRIBUTES:
                continue
            for name, value in copy.items():
                if type(value) in PLAIN or name in UNWATCHED:
                    continue
                if isinstance(value, Tensor):
                    if value.grad_fn is not None:
                        self._cut[id(value)] = (space.home, name), without_graph(value)
                        continue
                    self._held.add(id(value))
                values.append(((space.home, name), value))
        for module in self._modules:
            values += [((module, name), value) for name, value in outer_variables(type(module))]
        if self._cut:
            copies = [
                {name: self._cut[id(value)][1] if id(value) in self._cut else value for name, value in copy.items()}
                if space.role is Role.ATTRIBUTES
                else copy
                for space, copy in zip(self._spaces, copies, strict=True)
            ]
        reachable = Contents(values).roots()
        self._roots = [(key, value) for key, value in values if key in reachable]
        return copies


_NOTHING = Contents(())


def held_tensors(keys: Iterable[Key]) -> dict[tuple[Any, ...], Tensor]:
    """The tensors in attributes, each under its key and its number there; parameters and buffers are left out."""
    return {
        (*key, number): tensor
        for key in keys
        if key[1] not in key[0]._buffers and key[1] not in key[0]._parameters
        for number, tensor in enumerate(tensors(vars(key[0]).get(key[1])))
    }


def _set_since(entry: Entry) -> set[Key]:
    """The attributes, buffers and parameters that were set, replaced or deleted since."""
    if entry.attributes.still_hold():
        return set()
    return {
        (space.home, name)
        for space, kept in zip(entry.spaces, entry.attributes.copies, strict=True)
        if space.role is not Role.OF_PARAMETER and not identical(space.held, kept)
        for name in differing(space.held, kept)
        if name not in UNWATCHED
    }


def _put_back(attributes: DictionaryCopies, now: list[dict[str, Any]]) -> None:
    if now is not attributes.copies or not attributes.still_hold():
        for held, kept in zip(attributes.dicts, now, strict=True):
            put(held, kept)


def _like(tensor: Tensor, copy: Tensor) -> Tensor:
    return nn.Parameter(copy, requires_grad=False) if isinstance(tensor, nn.Parameter) else copy


def _is_managed(module: nn.Module) -> bool:
    """Whether somebody else moves the parameters of a module in and out: FSDP, DeepSpeed."""
    return any(
        hasattr(p, "ds_id") or descends(type(p), "DTensor") for p in module._parameters.values() if p is not None
    ) or is_sharded(module)
