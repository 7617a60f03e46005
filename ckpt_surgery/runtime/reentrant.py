"""The reentrant mode of one call of a block: its first pass runs without gradients.

What others can reach after such a pass is an output: what the block returned, what it wrote into its arguments and
attributes, and what hooks kept of its submodules' outputs. Torch gives outputs their gradient in place, so whoever
holds such a tensor already holds the right one. In the recompute the same tensors are recognised by their places.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from operator import attrgetter
from typing import Any, cast

from torch import Tensor, nn

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.runtime.cache_comparison import first_sum, left_in_caches, sum_with_caches
from ckpt_surgery.runtime.checkpoint.block_state import BlockState, Entry, Key, held_tensors
from ckpt_surgery.runtime.checkpoint.call_arguments import Arguments
from ckpt_surgery.runtime.checkpoint.recorded_call import RecordedCall
from ckpt_surgery.runtime.nested_backward import (
    keeps_graph,
    next_node,
    refuse_in_backward,
    refuse_others,
    runs_autograd,
)
from ckpt_surgery.runtime.observed_calls import Place, watching
from ckpt_surgery.runtime.recompute_mode import NOTHING, RecomputeMode
from ckpt_surgery.runtime.result_views import writable
from ckpt_surgery.runtime.self_check.check import SelfCheck
from ckpt_surgery.runtime.tensor_origins import TensorOrigins
from ckpt_surgery.runtime.tools.containers import (
    Flattener,
    Path,
    at,
    is_differentiable,
    placed_tensors,
    slot_paths,
    unflatten,
)

_graph_of: Callable[[Tensor], Any] = attrgetter("grad_fn")


class ReentrantMode(RecomputeMode):
    """The first pass runs without gradients, and every tensor of it that others can reach is a result."""

    __slots__ = ("_aside", "_constant", "_made", "_output", "_parts", "_paths", "_tables", "_watched", "_written")

    def __init__(self, call: RecordedCall, check: SelfCheck | None) -> None:
        super().__init__(call, check)
        self._output: Any = None
        """The spec of what the block returned."""
        self._paths: tuple[Path, ...] = ()
        """Where in the output its tensors are: the first of the results."""
        self._aside: tuple[Place, ...] = ()
        """Where the other results are: what can be reached besides the output."""
        self._tables: Set[Place] = frozenset()
        """Where the first pass gave watched submodules a tensor that it had not made."""
        self._watched: tuple[nn.Module, ...] = ()
        """The submodules at whose calls somebody else may look."""
        self._parts: dict[Key, Any] = {}
        """The modules and parameters that the first pass made: gradients go to these, and not to others like them."""
        self._made: tuple[weakref.ref[Tensor], ...] = ()
        """The results of the first pass."""
        self._written: Set[Key] = frozenset()
        """What the first pass wrote on the block, without the constants."""
        self._constant: Set[Key] = frozenset()
        """What the first pass wrote on the block that holds no tensor with gradient."""

    def first(self, arguments: Arguments, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        call, state = self._call, self._call.state
        with_caches, arguments = arguments, call.signature.without_caches(*arguments)
        args, kwargs = arguments
        drops = args is not with_caches[0] or kwargs is not with_caches[1]
        call.refuse_hidden_gradients(besides=left_in_caches)
        entry = call.begin(watching=self._check is not None)
        self._watched = state.observed()
        with_cache = sum_with_caches(call, with_caches, self._watched) if self._check and drops else None
        _refuse_computed_parameters(call, entry)
        tracing = self._check is not None or not (state.known and state.traced)
        note_rounded = self._check.rounded if self._check is not None else None
        origins = TensorOrigins((*given, *_trainable(call.block)), note_rounded) if tracing else None
        excluded = {*map(id, given), *map(id, call.constants), *state.buffers}
        check = self._check.forward(saved=False) if self._check is not None else NOTHING
        with watching(self._watched, weakref.ref) as seen, origins or NOTHING, check:
            try:
                output = call.forward(*args, **kwargs)
            except Exception as error:
                if runs_autograd(error):
                    raise SurgeryError(
                        f"{call.place} takes a gradient inside its forward, which runs without a graph with "
                        "use_reentrant=True; use use_reentrant=False"
                    ) from error
                if with_cache is None:
                    raise
                raise SurgeryError(
                    f"{call.place} does not run without the cache that it is given ({type(error).__name__}: {error}): "
                    "with use_reentrant=True the gradient of what it writes there would be lost; use "
                    "use_reentrant=False, or train without a cache"
                ) from error
        # one that requires gradient without having got it here is somebody else's, and goes on as it is
        flattener = Flattener(lambda tensor: _is_new(tensor) and _is_result(tensor, excluded, entry))
        self._output = flattener.flatten(output)
        self._paths = tuple(slot_paths(self._output).values())
        if with_cache is not None and with_cache != first_sum(output):
            raise SurgeryError(
                f"{call.place} computes something else without the cache that it is given: with use_reentrant=True "
                "the gradient of what it writes there would be lost; use use_reentrant=False, or train without a cache"
            )
        del output
        written = call.end()
        if written:
            self._parts = _parts(written)
        self._note_written(written, entry, origins)
        excluded |= {id(tensor) for tensor in flattener.tensors}
        results = (*flattener.tensors, *self._set_aside(arguments, seen, excluded, entry, origins))
        del flattener
        if any(tensor._is_view() for tensor in results):
            results = writable(results, (*given, *call.constants, *entry.own_tensors))
        if origins is not None and origins.any_alive_besides((*given, *results, *entry.own_tensors)):
            raise SurgeryError(
                f"{call.place} keeps a tensor with gradient where nobody can find it, neither in its output nor on "
                "its modules: with use_reentrant=True its gradient would be lost; use use_reentrant=False"
            )
        if self._check is not None:
            self._check.results(results)
        self._made = tuple(map(weakref.ref, results))
        return results

    def again(self, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        results = self._again(given) if self._check is None else self._checked(self._check, given)
        if not keeps_graph():  # the graph of the results holds this, and what this holds may lead to the results
            self._call.release()
        return results

    def _checked(self, check: SelfCheck, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        start = next_node()
        results: list[tuple[Tensor, ...]] = []

        def run() -> tuple[Tensor, ...]:
            results.append(self._again(given))
            refuse_others(self._call.place, self._call.state.parameters, results[-1], start)
            return results[-1]

        check.recompute(run, lambda: self._again(given), [_path_in_words(path) for path in self._paths])
        return results[0]

    def _again(self, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        def forward(stand_ins: Mapping[int, Any]) -> tuple[Any, dict[Place, Any], set[str]]:
            args, kwargs = self._call.signature.without_caches(*self._call.rebuilt(given, stand_ins))
            with watching(self._watched, lambda tensor: lambda: tensor) as seen:
                output = self._call.forward(*args, **kwargs)
            reachable = self._reachable((args, kwargs), seen)
            _refuse_other_parts(self._call, self._parts)
            constant = held_tensors(self._constant) if self._constant else {}
            return output, reachable, {place[1] for place, tensor in constant.items() if tensor.requires_grad}

        trusting = self._check is None
        output, reachable, lost = self._call.run_as_at_entry(forward, keeping=self._parts, trusting=trusting)
        for place in self._tables:
            if (tensor := reachable.get(place)) is not None and tensor.requires_grad:
                raise SurgeryError(
                    f"{self._call.place} gave a {type(place[0]).__name__} with a hook a tensor with gradient, and one "
                    "without in the first pass: with use_reentrant=True its gradient may be lost; use "
                    "use_reentrant=False"
                )
        if lost:
            raise SurgeryError(
                f"{self._call.place} left a tensor with gradient in its attribute {min(lost)}, and none in the first "
                "call: with use_reentrant=True its gradient would be lost; use use_reentrant=False"
            )
        results = [at(output, path) for path in self._paths] + [reachable.get(place) for place in self._aside]
        if self._written:
            self._note_late_tables(reachable)
        if any(result is None for result in results):
            raise SurgeryError(
                f"the recompute of {self._call.place} did not make the tensors that its forward made: it depends on "
                "something that has changed since; keep that as it was until the backward, or leave the block out"
            )
        shared: list[Any] = [result for result, made in zip(results, self._made, strict=True) if result is made()]
        if shared:
            for result in shared:
                result.detach_()
            raise SurgeryError(
                f"{self._call.place} hands on a tensor that it has not made itself, or not anew: with "
                "use_reentrant=True its gradient would come back here without end; use use_reentrant=False"
            )
        return tuple(result.detach() if _is_cut_view(result) else result for result in results)

    def _note_late_tables(self, reachable: Mapping[Place, Any]) -> None:
        """What was written for the first time after the call that was traced may turn out to be a table."""
        late = {place[:2] for place in self._aside} & self._written
        with_gradient = {place[:2] for place, tensor in reachable.items() if tensor.requires_grad}
        self._call.state.constant |= late - with_gradient
        for tensor in held_tensors(late - with_gradient).values():
            if tensor.grad_fn is not None and not tensor._is_view():
                tensor.detach_()  # it was a result of the first pass, before this was known

    def output(self, results: tuple[Tensor, ...]) -> Any:
        call = self._call
        refuse_in_backward(call.place, call.state.parameters, results, anchored=self._check is not None)
        spec, self._output = self._output, None
        return unflatten(spec, results)

    def _note_written(self, written: set[Key], entry: Entry, origins: TensorOrigins | None) -> None:
        """Note what the call wrote on the block; `origins` saw the call, if it was traced."""
        state = self._call.state
        if origins is not None:
            held = {key: held_tensors({key}).values() for key in written}
            state.constant = (state.constant - written) | {
                key for key, values in held.items() if values and not any(map(origins.descends_from_sources, values))
            }
            state.traced = True
        if written:
            self._written, self._constant = written - state.constant, written & state.constant
        for key, tensor in (*entry.cut.values(), *entry.contents.cut.values()):
            tensor.register_hook(_refusal(self._call.place, cast(Key, key), state))  # type: ignore[no-untyped-call]
        for name, tensor in self._call.cut_arguments():
            tensor.register_hook(_refusal_of_argument(self._call.place, name))  # type: ignore[no-untyped-call]

    def _set_aside(
        self,
        arguments: Arguments,
        seen: Mapping[Place, Any],
        excluded: Collection[int],
        entry: Entry,
        origins: TensorOrigins | None,
    ) -> list[Tensor]:
        """The tensors that the call made and others can reach, apart from the `excluded` ones; each once.

        `origins` saw the call, if it was traced.
        """
        state = self._call.state
        aside: dict[int, tuple[Place, Tensor]] = {}
        tables: set[Place] = set()
        for place, tensor in self._reachable(arguments, seen).items():
            if tensor is None or not _is_result(tensor, excluded, entry):
                continue
            if place in seen and (place in state.tables if origins is None else not origins.made(tensor)):
                tables.add(place)
            else:
                aside.setdefault(id(tensor), (place, tensor))
        if tables:
            self._tables = tables
        if origins is not None:
            state.tables = tables
        self._aside = tuple(place for place, _ in aside.values())
        return [tensor for _, tensor in aside.values()]

    def _reachable(self, arguments: Arguments, seen: Mapping[Place, Any]) -> dict[Place, Any]:
        """Tensors that others can reach after the call, by their places; None for those that are gone."""
        reachable = {place: reference() for place, reference in seen.items()}
        if self._call.writable:  # else what the arguments hold is what they were given with
            args, kwargs = arguments
            reachable |= dict(placed_tensors(args, ("positional",)))
            reachable |= dict(placed_tensors(kwargs, ("keyword",)))
        return {**reachable, **held_tensors(self._written)} if self._written else reachable


def _refuse_computed_parameters(call: RecordedCall, entry: Entry) -> None:
    """Raise SurgeryError where a parameter has a graph of its own, as in torch.func.functional_call."""
    for watched in entry.watched if any(map(_graph_of, entry.own_tensors)) else ():
        if watched.tensor.grad_fn is not None and not watched.is_buffer:
            raise SurgeryError(
                f"{call.place} runs with a computed tensor as its parameter {watched.key[1]}: with use_reentrant=True "
                "its gradient would be lost; use use_reentrant=False"
            )


def _parts(written: Iterable[Key]) -> dict[Key, Any]:
    """The modules and trainable parameters among what a call wrote."""
    parts = {key: _part(*key) for key in written}
    return {
        key: part
        for key, part in parts.items()
        if isinstance(part, nn.Module) or getattr(part, "requires_grad", False)
    }


def _part(module: nn.Module, name: str) -> Any:
    part = module._modules.get(name)
    return module._parameters.get(name) if part is None else part


def _refuse_other_parts(call: RecordedCall, parts: Mapping[Key, Any]) -> None:
    """Raise SurgeryError where a recompute made modules or parameters again: gradients would go to the wrong ones."""
    for (module, name), part in parts.items():
        if _part(module, name) is not part:
            raise SurgeryError(
                f"{call.place} makes its {name} in its forward, each time anew: with use_reentrant=True the gradient "
                "would go to another one; use use_reentrant=False"
            )


def _path_in_words(path: Path) -> str:
    return "".join(["its output", *(f"[{place!r}]" for place in path)])


def _refusal(place: str, key: Key, state: BlockState) -> Callable[[Tensor], None]:
    """A hook for a tensor that a block kept of an earlier call: its gradient cannot go on to that call."""

    def refuse(gradient: Tensor) -> None:
        if key not in state.constant:
            raise SurgeryError(
                f"{place} used the tensor with gradient that an earlier call left in its attribute {key[1]}: with "
                "use_reentrant=True its gradient would be lost; use use_reentrant=False"
            )

    return refuse


def _refusal_of_argument(place: str, name: str) -> Callable[[Tensor], None]:
    """A hook for a tensor that an object among the arguments led to: its gradient cannot go on from here."""

    def refuse(gradient: Tensor) -> None:
        raise SurgeryError(
            f"{place} used a tensor with gradient that its argument {name} leads to: with use_reentrant=True its "
            "gradient would be lost; use use_reentrant=False, or pass the tensor itself"
        )

    return refuse


def _trainable(block: nn.Module) -> Iterator[nn.Parameter]:
    return (parameter for parameter in block.parameters() if parameter.requires_grad)


def _is_result(tensor: Tensor, excluded: Collection[int], entry: Entry) -> bool:
    """Whether a tensor was made in the call: no parameter, none of the `excluded`, and not there at its entry."""
    if not is_differentiable(tensor) or (type(tensor) is not Tensor and isinstance(tensor, nn.Parameter)):
        return False  # to ask whether something is a Parameter takes long
    return id(tensor) not in excluded and not entry.is_there(tensor)


def _is_new(tensor: Tensor) -> bool:
    """Whether a tensor was made without gradients."""
    return not tensor.requires_grad or _is_cut_view(tensor)


def _is_cut_view(tensor: Tensor) -> bool:
    """Whether a tensor was made without gradients and says otherwise, as a view does whenever its base does."""
    return tensor.requires_grad and tensor.grad_fn is None and tensor._is_view()
