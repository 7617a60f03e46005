"""One call of a block in a training step: what it was given, the gradients that reach it, and the same call alone.

It is run again plainly, without checkpointing, which takes the memory of one call of one block.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge, saved_tensors_hooks
from torch.utils.hooks import RemovableHandle

from ckpt_surgery.guarding.contributions import Contributions
from ckpt_surgery.guarding.handed_on import CutTensors, HandedOnTensors, contained, put
from ckpt_surgery.runtime.blocks.library_switch import FUNCTION, flags_of, options_of
from ckpt_surgery.runtime.checkpoint.block_state import BlockState
from ckpt_surgery.runtime.checkpoint.call_arguments import Arguments, BlockSignature
from ckpt_surgery.runtime.checkpoint.recorded_call import RecordedCall
from ckpt_surgery.runtime.tools.containers import Flattener, placed_tensors, tensors, unflatten
from ckpt_surgery.runtime.tools.rng import devices_of, torch_states, torch_states_kept


@dataclass(frozen=True, slots=True)
class CallAlone:
    """What a call made without checkpointing: gradients of parameters and arguments by name, and the bytes it kept.

    It `hands_on_cut` where something that it returns, or leaves in its arguments, had no graph in the step. `cut` are
    the parameters behind that, and `uses_cut_of` the other blocks of which it uses such tensors.
    """

    parameters: Mapping[str, Tensor]
    arguments: Mapping[str, Tensor]
    kept: int
    hands_on_cut: bool
    cut: tuple[str, ...]
    uses_cut_of: tuple[str, ...]


class WitnessedCall:
    """A call of `block` with these arguments, as it begins in the forward.

    `hook` follows where a graph is made: at once, or in the recompute; `leave` when the block returns. `gradients` are
    then those of its arguments, by name, and `made` what the graph of its results begins with.
    """

    def __init__(self, name: str, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._block = block
        signature = BlockSignature.of(name, block, block.forward, fills_cache=False)
        arguments = signature.without_own_caches(*signature.without_use_cache(args, kwargs))
        self.handed_on = HandedOnTensors((args, kwargs))
        self._record = RecordedCall(block, block, signature, BlockState(block), arguments)
        self._inputs = [tensor.detach() for tensor in self._record.tensors]
        direct = [(label, value) for label, value in signature.named(args, kwargs) if isinstance(value, Tensor)]
        labels = {id(value): f"its argument {label}" for label, value in direct}
        # a tensor that is given twice has one, also where each of its places has another one in the recompute
        self._labels = {label: labels[id(value)] for label, value in direct}
        self._given = {
            place: labels[id(tensor)] for place, tensor in enumerate(self._record.tensors) if id(tensor) in labels
        }
        self._record.tensors = []
        self._states = torch_states(devices_of(block))
        self._casting = [
            (kind, torch.get_autocast_dtype(kind)) for kind in _DEVICE_KINDS if torch.is_autocast_enabled(kind)
        ]
        self._contributions: Contributions | None = None
        self._cut_outputs: set[int] = set()
        self._output_gradients: dict[int, Tensor] = {}
        self._returned = False
        self.made: list[Node] = []
        self.gradients: dict[str, Tensor] = {}
        self._record.begin(watching=True)

    @property
    def hooked(self) -> bool:
        """Whether its graph is watched."""
        return self._contributions is not None

    @property
    def precision(self) -> torch.dtype | None:
        """What its operators are cast to, if to anything."""
        return self._casting[0][1] if self._casting else None

    @property
    def given_bytes(self) -> int:
        """The bytes of what it was given with a gradient."""
        return sum(tensor.nbytes for tensor in self._inputs)

    @property
    def reached(self) -> list[Tensor]:
        """The gradients that have reached it."""
        return [*self._output_gradients.values(), *self.handed_on.gradients.values()]

    @property
    def nodes(self) -> Mapping[str, Node]:
        """Where the gradients of its arguments flow to, by name."""
        return {} if self._contributions is None else self._contributions.nodes

    def hook(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The block begins to make a graph, with these arguments; its keywords are to be those that are returned."""
        named = [(name, value) for name, value in self._record.signature.named(args, kwargs) if _has_graph(value)]
        hidden = kwargs if _hides_keywords(self._block) else {}
        self._contributions = Contributions(
            (self._labels[name], value) for name, value in named if name in self._labels and name not in hidden
        )
        return {name: self._seen(name, value) if name in hidden else value for name, value in kwargs.items()}

    def _seen(self, name: str, value: Any) -> Any:
        """A view of an argument, whose gradient is what the block adds to that of the argument."""
        if name not in self._labels or not _has_graph(value):
            return value
        view = value.view_as(value)
        view.register_hook(partial(add_gradient, self.gradients, self._labels[name]))
        return view

    def leave(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, *, in_backward: bool
    ) -> tuple[Any, list[RemovableHandle]]:
        """The block returns `output`: what to hand on in its place, or None, and hooks to be removed at the end.

        These are views: the gradient of a view is none that the block itself adds to.
        """
        if not in_backward:
            self._record.end()
            self.handed_on.note((args, kwargs), watch=self.hooked)
        if self._contributions is None or self._returned:
            return None, []
        self._returned = True
        returned = Flattener(_has_graph)
        spec = returned.flatten(output)
        views = [tensor.view_as(tensor) for tensor in returned.tensors]
        self.made = [get_gradient_edge(view).node for view in views] + self.handed_on.nodes
        places = [id(tensor) for tensor in tensors(output)]  # also of those without a graph: alone, others have one
        tracked = set(map(id, _tracked(output) if in_backward else returned.tensors))
        self._cut_outputs = {place for place, tensor in enumerate(places) if tensor not in tracked}
        for tensor, view in zip(returned.tensors, views, strict=True):
            place = places.index(id(tensor))
            view.register_hook(partial(_note_output, self._output_gradients, place))  # type: ignore[no-untyped-call]
        handles = self._contributions.watch(self.made, partial(add_gradient, self.gradients))
        return unflatten(spec, views) if views else None, handles

    def release(self) -> None:
        """Let go of the graph and of what the call was given."""
        self.made.clear()
        self.handed_on.nodes.clear()
        self._contributions = None
        self._output_gradients.clear()
        self._inputs.clear()
        del self._record

    def run_alone(self, parameters: Mapping[str, nn.Parameter], cut_tensors: CutTensors) -> CallAlone:
        """Run the block without checkpointing, with the gradients that have reached it."""
        given = [tensor.detach().requires_grad_() for tensor in self._inputs]
        present = (*given, *self._block.parameters(), *parameters.values(), *self._block.buffers())
        known = {tensor.untyped_storage()._cdata for tensor in present}
        kept: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in known:
                kept[storage._cdata] = storage.nbytes()
            return tensor

        arguments_wanted = {label: given[place] for place, label in self._given.items()}
        with (
            torch.enable_grad(),
            torch_states_kept(self._states),
            _autocast(self._casting),
            self._record.as_at_entry() as stand_ins,
            _without_checkpointing(self._block),
            saved_tensors_hooks(keep, _same),
        ):
            arguments, used = _with_cut_tensors(self._record.rebuilt(given, stand_ins), cut_tensors)
            args, kwargs = arguments
            results = list(tensors(self._block(*args, **kwargs)))
        left = contained((args, kwargs))
        reached = [
            (results[n], gradient) for n, gradient in self._output_gradients.items() if results[n].requires_grad
        ]
        reached += [pair for pair in self.handed_on.reached_in(left) if pair[0].requires_grad]
        cut = [results[n] for n in self._cut_outputs if n < len(results) and results[n].requires_grad]
        cut += self.handed_on.cut_in(left)
        made: Sequence[Tensor | None] = torch.autograd.grad(
            [result for result, _ in reached],
            [*parameters.values(), *arguments_wanted.values(), *(tensor for _, tensor in used)],
            [gradient for _, gradient in reached],
            allow_unused=True,
            retain_graph=bool(cut),
        )
        gradients = iter(made)
        of_parameters, of_arguments = (_those_made(names, gradients) for names in (parameters, arguments_wanted))
        of_used = zip(used, gradients, strict=True)
        return CallAlone(
            of_parameters,
            of_arguments,
            sum(kept.values()),
            bool(cut),
            _parameters_behind(cut, parameters),
            tuple(dict.fromkeys(maker for (maker, _), gradient in of_used if gradient is not None and gradient.any())),
        )


def add_gradient(gradients: dict[str, Tensor], name: str, gradient: Tensor | None) -> None:
    """Add up what flows to `name`; custom functions may give None."""
    if gradient is None:
        return
    before = gradients.get(name)
    gradient = gradient.detach()
    gradients[name] = gradient.clone() if before is None else before + gradient


def _note_output(gradients: dict[int, Tensor], place: int, gradient: Tensor | None) -> None:
    if gradient is not None:
        gradients.setdefault(place, gradient.detach())


_DEVICE_KINDS = ("cpu", "cuda")


def _has_graph(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _hides_keywords(block: nn.Module) -> bool:
    """Whether the graph of a call does not show what its keywords lead to: the library's reentrant checkpointing."""
    function = vars(block).get(FUNCTION)
    options = options_of(inspect.unwrap(function)) if function is not None else None
    return options is not None and options[0].get("use_reentrant") is not False


def _tracked(output: Any) -> Iterable[Tensor]:
    """The outputs to which reentrant checkpointing gives a graph, where hooks run inside of it."""
    outputs = output if isinstance(output, tuple) else (output,)
    return [value for value in outputs if isinstance(value, Tensor)]


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _those_made(names: Iterable[str], gradients: Iterator[Tensor | None]) -> dict[str, Tensor]:
    """The next gradients by name, without those that are None."""
    return {name: gradient for name in names if (gradient := next(gradients)) is not None}


def _with_cut_tensors(arguments: Arguments, cut: CutTensors) -> tuple[Arguments, list[tuple[str, Tensor]]]:
    """The arguments, with a graph for what other blocks have handed on without: that, and whose it is."""
    placed = list(placed_tensors(arguments)) if cut else []
    makers = {path: maker for path, tensor in placed if (maker := cut.maker(tensor))}
    used = {path: tensor.detach().requires_grad_() for path, tensor in placed if path in makers}
    if used:
        arguments = put(arguments, (), used)
    return arguments, [(maker, used[path]) for path, maker in makers.items()]


def _parameters_behind(made: Sequence[Tensor], parameters: Mapping[str, nn.Parameter]) -> tuple[str, ...]:
    """The parameters that these tensors were made with."""
    if not made or not parameters:
        return ()
    ones = [torch.ones_like(tensor) for tensor in made]
    gradients: Sequence[Tensor | None] = torch.autograd.grad(made, list(parameters.values()), ones, allow_unused=True)
    return tuple(name for name, each in zip(parameters, gradients, strict=True) if each is not None)


@contextmanager
def _autocast(casting: Sequence[tuple[str, torch.dtype]]) -> Iterator[None]:
    """Inside, operators cast as they did when the block ran."""
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        if not casting:
            yield
            return
        kind, dtype = casting[0]
        with torch.autocast(kind, dtype=dtype, cache_enabled=False):
            yield


@contextmanager
def _without_checkpointing(block: nn.Module) -> Iterator[None]:
    """Inside, nothing in a block is checkpointed, by a surgery or by its library."""
    before: list[tuple[nn.Module, dict[str, Any]]] = []
    for module in block.modules():
        own = vars(module)
        names = [*flags_of(module), *([FUNCTION] if FUNCTION in own else [])]
        before.append((module, {name: own[name] for name in names if name in own}))
        own.update(dict.fromkeys(flags_of(module), False))
        if FUNCTION in own:
            own[FUNCTION] = None
    try:
        yield
    finally:
        for module, attributes in before:
            for name in flags_of(module):
                vars(module).pop(name, None)
            vars(module).update(attributes)
