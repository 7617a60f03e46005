"""One call of a block under checkpointing: the first pass now, and the same computation again in the backward.

Which function checkpoints, and with which options, is not known here: it gets a function of gradient tensors and
may run its first pass with gradients (non-reentrant) or without (reentrant).

1. Every tensor that carries gradient is a positional argument of that function, wherever the call had it.
2. The recompute sees what the first pass saw: arguments, containers and written state as they were at entry.
3. The recompute leaves nothing behind: no buffer, no attribute, no container is written by it.
4. What others can reach after a first pass without gradients is an output: what the block returned, what it wrote
   into its arguments and attributes, and what hooks kept of its submodules' outputs. Torch gives outputs their
   gradient in place, so whoever holds such a tensor already holds the right one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.runtime.block_state import Key, State, held_tensors, modules_of, sets_nothing
from ckpt_surgery.runtime.call_arguments import (
    PLAIN,
    Arguments,
    Parts,
    Signature,
    at,
    fill,
    hidden_tensors,
    is_cache,
    is_differentiable,
    items,
    paths,
    tensors,
)
from ckpt_surgery.runtime.tensor_origins import Made
from ckpt_surgery.runtime.tensors import version

Where = tuple[Any, ...]

_NOTHING: AbstractContextManager[dict[Any, Any]] = nullcontext({})


class Computation:
    """One call of `forward`, which runs `block`: `run` it with `tensors` for its results, and later once more."""

    __slots__ = (
        "_aside",
        "_before",
        "_block",
        "_constant",
        "_forward",
        "_given",
        "_left",
        "_opaque",
        "_output",
        "_paths",
        "_recipe",
        "_signature",
        "_state",
        "_watched",
        "_writable",
        "_written",
        "tensors",
    )

    def __init__(
        self,
        block: nn.Module,
        forward: Callable[..., Any],
        signature: Signature,
        state: State,
        call: Arguments,
    ) -> None:
        args, kwargs = call
        parts = Parts(_carries_gradient)
        recipes = [
            value if type(value) in PLAIN else parts.take(_own(value) if known in signature.past else value, known)
            for known, value in signature.named(args, kwargs)
        ]
        self.tensors = parts.tensors
        """The gradient tensors of the call, each once, in the order of the arguments."""
        self._signature = signature
        self._block = block
        self._forward = forward
        self._state = state
        self._given: Arguments | None = call
        self._recipe = tuple(recipes[: len(args)]), dict(zip(kwargs, recipes[len(args) :], strict=True))
        self._left = [(known, tensor, version(tensor)) for known, tensor in parts.left]
        self._opaque = [(n, value, None if is_cache(value) else _contents(value)) for n, value in parts.opaque]
        self._writable = parts.writable
        self._before: dict[Key, Any] = {}
        self._watched: tuple[nn.Module, ...] = ()
        self._written: set[Key] = set()
        self._constant: set[Key] = set()
        self._output: Any = None
        self._paths: tuple[Where, ...] = ()
        self._aside: tuple[Where, ...] | None = None  # None after a first pass with gradients

    @property
    def _place(self) -> str:
        return self._signature.place

    def run(self, *given: Tensor) -> tuple[Tensor, ...]:
        """The tensors that the block makes of `given`, which stand for `tensors`.

        Raises SurgeryError where an argument is not what it was, or hides gradients that would get lost.
        """
        if self._given is None:
            return self._again(given)
        (args, kwargs), self._given = self._given, None
        self.tensors = []
        before = [version(tensor) for tensor in given]
        results = (self._with_gradients if torch.is_grad_enabled() else self._without_gradients)(args, kwargs, given)
        for tensor, known in zip(given, before, strict=True):
            if version(tensor) != known:
                name = _name_of(tensor, self._signature.named(args, kwargs))
                raise SurgeryError(
                    f"{self._place} cannot be recomputed: it modified its argument {name} in place; leave the block "
                    "out, or give it a copy"
                )
        return results

    def output(self, results: tuple[Tensor, ...]) -> Any:
        """What the block returned, made of the results of the first run. To be asked for once."""
        made, self._output = self._output, None
        return made if self._aside is None else fill(made, results)

    def _with_gradients(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], given: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        learning = not self._state.known
        entry = self._state.entry(everything=learning)
        self._output = self._forward(*args, **kwargs)
        if learning:
            self._state.learn(entry)
        self._before = self._state.copies(entry)
        return (self._output,) if isinstance(self._output, Tensor) else tuple(tensors(self._output))

    def _without_gradients(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], given: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        self._refuse_hidden()
        known = {id(tensor) for tensor in given} | {id(tensor) for _, tensor, _ in self._left}
        state = self._state
        first = not (state.known and state.traced)
        entry = state.entry(everything=first, containers=True)
        made = Made((*given, *(p for p in self._block.parameters() if p.requires_grad))) if first else _NOTHING
        snapshots, watched = [], []
        for module in modules_of(self._block):
            known.update(map(id, module._buffers.values()))
            observed = _is_observed(module)
            if observed and module is not self._block:
                watched.append(module)
            if observed or not sets_nothing(type(module)):  # type: ignore[arg-type]  # a class is hashable
                snapshots.append((module, vars(module).copy()))
        self._watched = tuple(dict.fromkeys(watched))
        with _watched(self._watched, weakref.ref) as kept, made:
            output = self._forward(*args, **kwargs)
        # one that requires gradient without having got it here is somebody else's, and goes on as it is
        parts = Parts(lambda t: _is_new(t) and _is_result(t, known))
        self._output = parts.take(output)
        self._paths = tuple(paths(self._output).values())
        del output
        written = state.learn(entry) if first else state.learn_more(entry, snapshots)
        if isinstance(made, Made):
            held = {key: held_tensors({key}).values() for key in written}
            state.constant = {key for key, found in held.items() if found and not any(map(made.follows, found))}
            state.traced = True
        self._written, self._constant = written - state.constant, written & state.constant
        self._before = state.copies(entry)
        for key, tensor in state.cut(entry).items():
            tensor.register_hook(_refusal(self._place, key, state))  # type: ignore[no-untyped-call]
        known |= {id(tensor) for tensor in parts.tensors}
        aside: dict[int, tuple[Where, Tensor]] = {}
        for where, tensor in self._reachable(args, kwargs, kept).items():
            if tensor is not None and _is_result(tensor, known):
                aside.setdefault(id(tensor), (where, tensor))
        self._aside = tuple(where for where, _ in aside.values())
        results = (*parts.tensors, *(tensor for _, tensor in aside.values()))
        if isinstance(made, Made) and made.others((*given, *results, *self._block.buffers())):
            raise SurgeryError(
                f"{self._place} keeps a tensor with gradient where nobody can find it, neither in its output nor on "
                "its modules: with use_reentrant=True its gradient would be lost; use use_reentrant=False"
            )
        return results

    def _again(self, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if not self._block.training:
            raise SurgeryError(
                f"{self._place} cannot be recomputed: the model was put into evaluation mode between forward and "
                "backward; call eval() after the backward"
            )
        for name, tensor, known in self._left:
            if version(tensor) != known:
                raise SurgeryError(
                    f"{self._place} cannot be recomputed: its argument {name} was modified in place after the "
                    "forward; leave the block out, or give it a copy"
                )
        for name, value, contents in self._opaque:
            if contents is not None and _changed(value, contents):
                raise SurgeryError(
                    f"{self._place} cannot be recomputed: the {type(value).__name__} in its argument {name} holds "
                    "other tensors than before the forward; leave the block out, or give it a dict or list of tensors"
                )
        positional, keywords = self._recipe
        args = tuple([fill(part, given) for part in positional])
        kwargs = {name: part if type(part) in PLAIN else fill(part, given) for name, part in keywords.items()}
        with self._state.as_before(self._before) if self._before else _NOTHING:
            if self._aside is None:  # what is wanted is saved on the way
                self._forward(*args, **kwargs)
                return ()
            with _watched(self._watched, lambda tensor: lambda: tensor) as kept:
                output = self._forward(*args, **kwargs)
            reachable = self._reachable(args, kwargs, kept)
            lost = {where[1] for where, tensor in held_tensors(self._constant).items() if tensor.requires_grad}
        if lost:
            raise SurgeryError(
                f"{self._place} left a tensor with gradient in its attribute {min(lost)}, and none in the first call: "
                "with use_reentrant=True its gradient would be lost; use use_reentrant=False"
            )
        results = [at(output, path) for path in self._paths] + [reachable.get(where) for where in self._aside]
        # what was written for the first time after the call that was traced may turn out to be a table
        late = {where[:2] for where in self._aside} & self._written
        self._state.constant |= late - {where[:2] for where, found in reachable.items() if found.requires_grad}
        if any(result is None for result in results):
            raise SurgeryError(
                f"the recompute of {self._place} did not make the tensors that its forward made: it depends on "
                "something that has changed since"
            )
        return tuple(results)

    def _reachable(self, args: tuple[Any, ...], kwargs: dict[str, Any], kept: Mapping[Where, Any]) -> dict[Where, Any]:
        """Tensors that others can reach after the call, by where they are."""
        found = {where: reference() for where, reference in kept.items()}
        if self._writable:  # else what the arguments hold is what they were given with
            found |= {**dict(_inside(args, ("positional",))), **dict(_inside(kwargs, ("keyword",)))}
        return {**found, **held_tensors(self._written)} if self._written else found

    def _refuse_hidden(self) -> None:
        """Tensors with gradient in objects that nobody can look into would be constants. Raises SurgeryError."""
        for name, value, _ in self._opaque:
            if any(map(_carries_gradient, hidden_tensors(value))):
                raise SurgeryError(
                    f"{self._place} got tensors with gradient inside a {type(value).__name__} in its argument {name}: "
                    "with use_reentrant=True their gradient would be lost; use use_reentrant=False"
                )


def _refusal(place: str, key: Key, state: State) -> Callable[[Tensor], None]:
    """A hook for a tensor that a block kept of an earlier call: its gradient cannot go on to that call."""

    def refuse(gradient: Tensor) -> None:
        if key not in state.constant:
            raise SurgeryError(
                f"{place} used the tensor with gradient that an earlier call left in its attribute {key[1]}: with "
                "use_reentrant=True its gradient would be lost; use use_reentrant=False"
            )

    return refuse


def _watched(
    modules: Collection[nn.Module], held: Callable[[Tensor], Any]
) -> AbstractContextManager[dict[Where, Any]]:
    """Note the arguments and results of modules at which somebody else may look."""
    return _watching(modules, held) if modules else _NOTHING


@contextmanager
def _watching(modules: Iterable[nn.Module], held: Callable[[Tensor], Any]) -> Iterator[dict[Where, Any]]:
    seen: dict[Where, Any] = {}

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        call = len({where[1] for where in seen if where[0] is module})
        for place, tensor in enumerate(tensors((args, kwargs, output))):
            seen[(module, call, place)] = held(tensor)

    handles = [module.register_forward_hook(note, with_kwargs=True) for module in modules]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _is_observed(module: nn.Module) -> bool:
    """Whether somebody else may look at what goes through a module of a block: a hook, or another forward."""
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def _is_result(tensor: Tensor, known: Collection[int]) -> bool:
    """Whether a tensor was made in the call: it is no parameter and none of the `known`."""
    return is_differentiable(tensor) and id(tensor) not in known and not isinstance(tensor, nn.Parameter)


def _is_new(tensor: Tensor) -> bool:
    """Whether a tensor was made without gradients. A view says all the same that it requires what its base does."""
    return not tensor.requires_grad or (tensor.grad_fn is None and tensor._is_view())


def _inside(value: Any, where: Where) -> Iterator[tuple[Where, Tensor]]:
    """The tensors inside the containers of `value`, by where they are."""
    for place, item in items(value):
        if isinstance(item, Tensor):
            yield (*where, place), item
        else:
            yield from _inside(item, (*where, place))


def _carries_gradient(tensor: Tensor) -> bool:
    return tensor.requires_grad


def _contents(value: Any) -> list[tuple[weakref.ref[Tensor], int]]:
    return [(weakref.ref(tensor), version(tensor)) for tensor in hidden_tensors(value)]


def _changed(value: Any, contents: list[tuple[weakref.ref[Tensor], int]]) -> bool:
    """Whether an object that nobody can look into holds other tensors than it did, or other values in them."""
    now = list(hidden_tensors(value))
    return len(now) != len(contents) or any(
        reference() is not tensor or version(tensor) != known
        for tensor, (reference, known) in zip(now, contents, strict=True)
    )


def _name_of(tensor: Tensor, arguments: Iterable[tuple[str, Any]]) -> str:
    return next((name for name, value in arguments if any(one is tensor for one in tensors(value))), "")


def _own(value: Any) -> Any:
    """Past state as it is now: the caller may write into it before the recompute."""
    if isinstance(value, Tensor):
        return value if value.requires_grad else value.clone()
    if isinstance(value, (tuple, list)):
        return type(value)(map(_own, value)) if not hasattr(value, "_fields") else value
    return value
