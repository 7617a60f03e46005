"""Save and restore what a block's forward reads and leaves behind, besides the tensors that it returns.

The state is recorded before a call of the block and restored for its recompute, and then put back as it was.

It consists of the following, with classes of transformers 5.23.0 whose recompute is wrong without it:

- buffers and frozen parameters that the forward writes in place: the running statistics of EfficientNetBlock;
- attributes and buffers that it sets on modules of the block: the ranges of IBertLayer's QuantAct, the window shift of
  SwinStage, the padding of Gemma4AudioLayer, the state of RecurrentGemmaDecoderLayer;
- hooks inside the block that a library sets for the forward alone: the task of PEFT's Poly, the offsets of its
  activated LoRA; and hooks of the script that have returned something in place of what they were given;
- training flags, the kernels that attention may choose from, and the generators of Python and numpy, which belong to
  the process: any block may depend on them. torch's own generators and autocast are put back by torch's checkpoint.

Nothing else is recorded: what a block writes elsewhere is written twice under every checkpointing, and the self-check
finds out if that changes a result. What a block writes is learned in watched calls: the first one with each set of
modules and training flags, and every one that checks itself. Other calls only record what is known to be written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import call, is_, itemgetter
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ckpt_surgery.model_patches.release_names import FUNCTION
from ckpt_surgery.runtime.checkpoint.zero3 import OF_ZERO3, kept_whole
from ckpt_surgery.runtime.tools.classes import PACKAGE, descends, is_sharded, library_of
from ckpt_surgery.runtime.tools.containers import Absent, put
from ckpt_surgery.runtime.tools.rng import GeneratorStates
from ckpt_surgery.runtime.tools.tensors import (
    changing_saved,
    copy_of,
    is_plain,
    same_bits,
    version,
    versions,
    without_graph,
)
from ckpt_surgery.torch_names import FORWARD_HOOKS, kernel_reader

UNWATCHED = {*vars(nn.Module()), *OF_ZERO3, "forward", FUNCTION, "_old_forward"}
"""The attributes of a module that are not the block's own: torch's, and what libraries put there to run it."""
HOOKING = {"accelerate", "deepspeed", "diffusers", "peft", "torch", "transformers"}
"""The libraries whose hooks around forwards are a part of what a block computes."""
_SMALL = 4096
"""A buffer of at most this many elements is copied in every call: that costs next to nothing."""
_MOST_COPIED = 64 * 2**20
"""A frozen parameter of at most this many bytes is copied in watched calls, in case the block writes to it."""

_NOTHING: AbstractContextManager[None] = nullcontext()

Attribute = tuple[dict[str, Any], str]
"""A dictionary of a module (its attributes, buffers or parameters), and a name in it."""

_KERNELS = ("flash", "mem_efficient", "math", "cudnn")
"""The kernels of scaled dot-product attention: which are allowed is a setting of the process."""
_KERNEL_READERS = tuple(map(kernel_reader, _KERNELS))

_training_of: Callable[[dict[str, Any]], bool] = itemgetter("training")


def attention_kernels() -> tuple[bool, ...]:
    """Return for each kernel of scaled dot-product attention whether it is allowed."""
    return tuple(map(call, _KERNEL_READERS))


def allow_kernels(kernels: tuple[bool, ...]) -> None:
    """Allow the same kernels as when `attention_kernels` was read."""
    for name, allowed in zip(_KERNELS, kernels, strict=True):
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(allowed)


@dataclass(slots=True)
class _TensorCopy:
    """A buffer or frozen parameter, and its values as a call began."""

    home: dict[str, Any]
    name: str
    tensor: Tensor
    copy: Tensor
    version: int

    @classmethod
    def of(cls, home: dict[str, Any], name: str) -> _TensorCopy:
        tensor: Tensor = home[name]
        return cls(home, name, tensor, copy_of(tensor), version(tensor))

    @property
    def key(self) -> tuple[int, str]:
        """The identity of the attribute among others."""
        return id(self.home), self.name

    @property
    def is_small_buffer(self) -> bool:
        """Whether it is small enough to be copied in every call."""
        return self.tensor.numel() <= _SMALL and not isinstance(self.tensor, nn.Parameter)

    def again(self) -> Tensor:
        """Return a tensor with the recorded values, for a recompute to write to."""
        values = copy_of(self.copy)
        return nn.Parameter(values, requires_grad=False) if isinstance(self.tensor, nn.Parameter) else values

    def is_written(self, *, by_bits: bool) -> bool:
        """Tell whether it was written since; `by_bits` also finds uncounted writes, such as through `.data`."""
        return version(self.tensor) != self.version or (by_bits and not same_bits(self.copy, self.tensor))


class _Layout:
    """The dictionaries in which a block's modules hold things, and the submodules and parameters in them when read.

    `dictionaries` are those of attributes and buffers, `flagged` those with a training flag. A module or parameter
    that a forward makes when it first runs stays for the recompute, since gradients go to it.
    """

    __slots__ = (
        *("_members", "_tables", "buffers", "dictionaries", "flagged"),
        *("hooks", "is_partitioned", "own_parameters", "parameters"),
    )

    def __init__(self, block: nn.Module) -> None:
        modules = [module for module in block.modules() if not isinstance(module, torch.jit.ScriptModule)]
        self.is_partitioned = any(hasattr(p, "ds_id") and not p.requires_grad for p in block.parameters())
        self.own_parameters = []  # those that FSDP and DeepSpeed do not move in and out
        for module in modules:
            held = [parameter for parameter in module._parameters.values() if parameter is not None]
            if not (is_sharded(module) or any(hasattr(p, "ds_id") or descends(type(p), "DTensor") for p in held)):
                self.own_parameters.append(module._parameters)
        self.parameters = [p for home in self.own_parameters for p in home.values() if p is not None]
        self.flagged = [home for home in map(vars, modules) if "training" in home]
        self.buffers = [module._buffers for module in modules]
        self.hooks: list[dict[int, Any]] = [
            getattr(m, table) for m in modules if m is not block for table in FORWARD_HOOKS
        ]
        self.dictionaries: list[dict[str, Any]] = [*map(vars, modules), *self.buffers]
        tables = (*(cast(dict[str, Any], module._modules) for module in modules), *self.own_parameters)
        self._tables: list[dict[str, Any]] = [*filter(None, tables), {"": Absent}]  # the end: additions show
        self._members = list(self._now())

    def still_holds(self) -> bool:
        """Tell whether the block still has the very same submodules and parameters."""
        return all(map(is_, self._now(), self._members))

    def _now(self) -> Iterator[Any]:
        return chain.from_iterable(map(dict.values, self._tables))

    def may_be_written(self, *, first: bool) -> Iterator[Attribute]:
        """Yield the tensors that the block may write: its buffers; for the `first` watched call also others.

        The others are attributes and frozen parameters. Only optimizers write to what requires gradient.
        """
        homes: list[dict[str, Any]] = [*self.dictionaries, *self.own_parameters] if first else [*self.buffers]
        for home in filter(None, homes):
            for name, tensor in home.items():
                if not isinstance(tensor, Tensor) or tensor.requires_grad or not is_plain(tensor):
                    continue
                if not isinstance(tensor, nn.Parameter) or tensor.nbytes <= _MOST_COPIED:
                    yield home, name


@dataclass(slots=True)
class StateEntry:
    """The state at entry to a call; `everything` holds all dictionaries of a watched call until that ends.

    `changing_hooks` are the keys of the script's hooks inside the block that have returned something in the call.
    """

    layout: _Layout
    training: list[bool]
    kernels: tuple[bool, ...]
    versions: list[int]
    attributes: dict[tuple[int, str], tuple[Attribute, Any]]
    tensors: list[_TensorCopy]
    generators: GeneratorStates | None
    hooks: list[tuple[dict[int, Any], dict[int, Any]]]
    changing_hooks: set[int]
    everything: list[tuple[dict[str, Any], dict[str, Any]]] | None

    def noting_hooks(self) -> AbstractContextManager[None]:
        """Return a context that notes which script hooks return something in the call inside."""

        def note(key: int, hook: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            result = hook(*args, **kwargs)
            self.changing_hooks |= set() if result is None else {key}
            return result

        return self._script_hooks_in(note) if self.hooks else _NOTHING

    def tolerating_hooks(self, failed: Callable[[Exception], None]) -> AbstractContextManager[None]:
        """Return a context for a recompute in which errors of the script's hooks go to `failed`."""

        def tolerate(_: int, hook: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            try:
                return hook(*args, **kwargs)
            except Exception as error:
                return failed(error)

        return self._script_hooks_in(tolerate)

    @contextmanager
    def _script_hooks_in(self, run: Callable[..., Any]) -> Iterator[None]:
        replaced = []
        for table, _ in self.hooks:
            for key, hook in table.items():
                if callable(hook) and library_of(hook) not in (*HOOKING, PACKAGE):
                    replaced.append((table, key, hook))
                    table[key] = partial(run, key, hook)
        try:
            yield
        finally:
            for table, key, hook in replaced:
                if key in table:  # it may have removed itself
                    table[key] = hook

    def still_holds(self) -> bool:
        """Tell whether a recompute needs nothing restored."""
        return (
            not self.attributes
            and not self.tensors
            and self.everything is None
            and self.generators is None
            and not self.layout.is_partitioned
            and all(before.keys() <= table.keys() for table, before in self.hooks)
            and list(map(_training_of, self.layout.flagged)) == self.training
            and attention_kernels() == self.kernels
        )


class BlockState:
    """The knowledge of what the forward of `block` writes to its modules, with which a recompute restores that."""

    def __init__(self, block: nn.Module) -> None:
        self._block = block
        self.grown: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        """The objects among the arguments that a recompute has made larger, and how large."""
        self._forget()

    def __reduce__(self) -> tuple[Any, ...]:
        return BlockState, (self._block,)

    def _forget(self) -> None:
        self._layout: _Layout | None = None
        self._training: list[bool] | None = None  # the flags of the last watched call
        self._attributes: dict[tuple[int, str], Attribute] = {}  # that the block sets
        self._tensors: dict[tuple[int, str], Attribute] = {}  # that it writes in place
        self._written_parameters: set[int] = set()  # indices of those that the block itself writes
        self._draws = False
        self._unwatched = False  # whether one ran since the last watched call

    def entry(self, *, watching: bool) -> StateEntry:
        """Record what a recompute needs before a call; with `watching`, all that the block may write.

        A call with other modules or training flags than the last watched one is always watched.
        """
        layout = self._layout
        if layout is None or not layout.still_holds():
            self._forget()
            layout = self._layout = _Layout(self._block)
        training = list(map(_training_of, layout.flagged))
        if training != self._training:
            watching, self._training, self._unwatched = True, None, False
        self._unwatched = self._unwatched or not watching
        copied = self._tensors
        if watching:
            may_be_written = layout.may_be_written(first=self._training is None)
            copied = copied | {(id(home), name): (home, name) for home, name in may_be_written}
        return StateEntry(
            layout,
            training,
            attention_kernels(),
            versions(layout.parameters),
            {key: (each, _value(*each)) for key, each in self._attributes.items()} if self._attributes else {},
            [_TensorCopy.of(*each) for each in copied.values() if isinstance(_value(*each), Tensor)] if copied else [],
            GeneratorStates.now(exact=self._draws) if watching or self._draws else None,
            [(table, dict(table)) for table in layout.hooks if table] if any(layout.hooks) else [],
            set(),
            [(home, dict(home)) for home in layout.dictionaries] if watching else None,
        )

    def learn(self, entry: StateEntry) -> list[str]:
        """Learn what the watched call that began with `entry` wrote; the entry keeps what its recompute needs.

        What the block began to write after unwatched calls is restored from the next call on: the self-check of this
        one shows whether it matters. Returns those writes in words, if they can matter: numbers, tensors written in
        place, draws. A trained parameter that the block itself writes is not restored.
        """
        if entry.everything is None:
            return []
        first = self._training is None  # later ones trust version counters: comparing bits waits for the device
        known = self._attributes.keys() | self._tensors.keys()
        for home, before in entry.everything:
            for name in _differing(home, before) if home or before else ():
                key, attribute = (id(home), name), (home, name)
                self._attributes[key] = attribute
                if key in known or not self._unwatched:
                    entry.attributes.setdefault(key, (attribute, _without_graph(before.get(name, Absent))))
        for copy in entry.tensors:
            if copy.key not in self._attributes and (copy.is_small_buffer or copy.is_written(by_bits=first)):
                self._tensors[copy.key] = copy.home, copy.name
        late = (self._attributes.keys() | self._tensors.keys()) - known if self._unwatched else set()
        entry.tensors = [copy for copy in entry.tensors if copy.key in self._tensors and copy.key not in late]
        now = enumerate(versions(entry.layout.parameters))
        self._written_parameters |= {index for index, count in now if count != entry.versions[index]}
        draws = self._draws or (entry.generators is not None and entry.generators.drawn_since())
        entry.generators = entry.generators if self._draws or (draws and not self._unwatched) else None
        entry.everything = None
        words = [
            f"its {k[1]}" for k in late if k in self._tensors or type(_value(*self._attributes[k])) in (int, float)
        ]
        if draws and not self._draws and self._unwatched:
            words.append("the generators of Python or numpy")
        self._draws, self._training, self._unwatched = draws, entry.training, False
        return sorted(words)

    def written(self, entry: StateEntry) -> list[Attribute]:
        """Return the attributes and tensors that the watched call of `entry` wrote. Call `learn` first."""
        tensors = [(copy.home, copy.name) for copy in entry.tensors if copy.is_written(by_bits=True)]
        return [attribute for attribute, _ in entry.attributes.values()] + tensors

    @contextmanager
    def as_at_entry(self, entry: StateEntry) -> Iterator[None]:
        """Run a call inside the `with` on the state of `entry`, and undo what it writes there."""
        with ExitStack() as stack:
            for home, before in entry.everything or ():  # if the call has not ended: a backward inside it
                stack.callback(_put_all, home, dict(home))
                _put_all(home, before)
            for (home, name), value in entry.attributes.values():
                put_for(stack, home, name, value)
            for copy in entry.tensors:
                put_for(stack, copy.home, copy.name, copy.again())
            for home, training in zip(entry.layout.flagged, entry.training, strict=True):
                if home["training"] != training:
                    put_for(stack, home, "training", training)
            if entry.kernels != (kernels := attention_kernels()):
                stack.callback(allow_kernels, kernels)
                allow_kernels(entry.kernels)
            # put back, in order, missing hooks of libraries and those that returned something
            missing = [(k, hook) for table, held in entry.hooks for k, hook in held.items() if k not in table]
            gone = {key for key, hook in missing if library_of(hook) in HOOKING or key in entry.changing_hooks}
            for table, held in entry.hooks if gone else ():
                put_back = {key: value for key, value in held.items() if key in gone or key in table} | table
                table.clear()
                table.update(put_back)
                for key in gone:
                    stack.callback(table.pop, key, None)
            if entry.layout.is_partitioned:
                stack.enter_context(changing_saved(kept_whole))
            if entry.generators is not None:
                stack.callback(GeneratorStates.now().restore)
                entry.generators.restore()
            yield

    def written_parameter(self, entry: StateEntry) -> str | None:
        """Name a parameter that something other than the block has written since `entry`: a recompute would differ."""
        parameters = entry.layout.parameters
        if (now := versions(parameters)) == entry.versions:
            return None
        pairs = enumerate(zip(entry.versions, now, strict=True))
        others = [index for index, (old, new) in pairs if old != new and index not in self._written_parameters]
        written = {id(parameters[index]) for index in others}
        names = self._block.named_parameters(remove_duplicate=False)
        return next((name for name, parameter in names if id(parameter) in written), None)


def _value(home: dict[str, Any], name: str) -> Any:
    return _without_graph(home.get(name, Absent))


def _without_graph(value: Any) -> Any:
    """Return a value without the graph of the call that made it, which would keep earlier steps alive."""
    return without_graph(value) if isinstance(value, Tensor) and value.grad_fn is not None else value


def _differing(home: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """List the block's own names under which a dictionary holds another object than before."""
    if len(home) == len(before) and all(map(is_, home.values(), before.values())):
        return []
    made = {*home.get("_modules", ()), *home.get("_parameters", ())}  # new ones stay, also in place of a None
    names = (home.keys() | before.keys()) - UNWATCHED - made
    return [name for name in names if home.get(name, Absent) is not before.get(name, Absent)]


def _put_all(home: dict[str, Any], before: dict[str, Any]) -> None:
    for name in _differing(home, before):
        put(home, name, before.get(name, Absent))


def put_for(stack: ExitStack, home: dict[str, Any], name: str, value: Any) -> None:
    """Set a name to a value, and restore its present value when the stack ends."""
    stack.callback(put, home, name, home.get(name, Absent))
    put(home, name, value)
