"""The gradients of one block in a step, held against those of the block alone without checkpointing.

The block's inputs and the gradient that reaches its outputs are kept for one step. After the backward it is run once
more on them, plainly, which takes the memory of one block and never that of the model.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge, saved_tensors_hooks
from torch.distributed.tensor import DTensor
from torch.utils.hooks import RemovableHandle

from ckpt_surgery.errors import CkptSurgeryError
from ckpt_surgery.guarding.asked_for import not_asked_for
from ckpt_surgery.guarding.contributions import Contributions
from ckpt_surgery.guarding.handed_on import CutTensors, HandedOnTensors, contained, put
from ckpt_surgery.guarding.zero3 import whole_weights
from ckpt_surgery.measure.compare import relative_error
from ckpt_surgery.runtime.block_state import BlockState
from ckpt_surgery.runtime.call_arguments import Arguments, BlockSignature
from ckpt_surgery.runtime.containers import Flattener, placed_tensors, tensors, unflatten
from ckpt_surgery.runtime.library_switch import FUNCTION, flags_of, options_of
from ckpt_surgery.runtime.model_hook import ModelHook
from ckpt_surgery.runtime.recorded_call import RecordedCall
from ckpt_surgery.runtime.rng import devices_of, torch_states, torch_states_kept
from ckpt_surgery.runtime.tensors import version
from ckpt_surgery.text import error_line


class ProofStatus(StrEnum):
    """How the proof of a block ended."""

    PROVED = "proved"
    WRONG = "wrong"
    NOT_YET = "not yet"
    SEVERAL_CALLS = "runs several times in a step"
    NOT_CALLED = "did not run"
    NOT_REACHED = "no gradient reached it"
    HANDS_ON = "adds tensors to what it was given, which others use"
    HANDS_ON_CUT = "hands on tensors that have lost their gradient"
    WEIGHTS_CHANGED = "its weights changed in the backward"
    NOT_FINITE = "its gradients were inf or nan"
    NOT_ASKED_FOR = "not all of its gradients were asked for"
    FAILED = "could not be run alone"


@dataclass(frozen=True, slots=True)
class GradientProof:
    """What is known of one block's gradients.

    `errors` are the relative errors of the gradients that differ, by the name of the parameter or argument, and
    `compared` counts those that were held against each other. `alone_bytes` is what the block keeps without
    checkpointing, and `given_bytes` what it was given. `detail` says why it could not be run.

    `cut` are the parameters whose gradient also flows through tensors that the block hands on without a graph, and
    `uses_cut_of` the other blocks of which it uses such tensors.
    """

    name: str
    status: ProofStatus
    errors: Mapping[str, float] = field(default_factory=dict)
    compared: int = 0
    alone_bytes: int = 0
    given_bytes: int = 0
    detail: str = ""
    cut: Sequence[str] = ()
    uses_cut_of: Sequence[str] = ()

    @property
    def judged(self) -> bool:
        """Whether its gradients could be held against those of the block alone."""
        return self.status in (ProofStatus.PROVED, ProofStatus.WRONG)


class BlockWitness:
    """Watches one block for one step. `end` after the backward gives the proof.

    `parameters` are those of the block, by name, that nothing else in the model uses: the gradient of a shared one is
    not the block's alone. In place of a sharded one, the whole one is watched that FSDP2 gathers before the block
    runs: its gradient is this rank's own, before it is averaged. `cutting` are other blocks, which hand on tensors
    that have lost their graph: the proof says whether this block uses those.
    """

    def __init__(
        self,
        name: str,
        block: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        cutting: Mapping[str, nn.Module] = MappingProxyType({}),
    ) -> None:
        self._name = name
        self._block = block
        wanted = {name: p for name, p in parameters.items() if p.requires_grad and p.is_leaf}
        self._sharded = {name for name, p in wanted.items() if isinstance(p, DTensor)}
        self._parameters = {name: p for name, p in wanted.items() if name not in self._sharded}
        self._versions = {name: version(p) for name, p in self._parameters.items()}
        self._calls = 0
        self._in_backward = False
        self._aside = False
        self._hooked = False
        self._seen_output = False
        self._call: RecordedCall | None = None
        self._handed_on = HandedOnTensors(((), {}))
        self._cut_outputs: set[int] = set()
        self._states = torch_states(())
        self._casting: list[tuple[str, torch.dtype]] = []
        self._labels: dict[str, str] = {}
        self._given: dict[int, str] = {}
        self._contributions = Contributions(())
        self._made: list[Node] = []
        self._inputs: list[Tensor] = []
        self._gradients: dict[str, Tensor] = {}
        self._output_gradients: dict[int, Tensor] = {}
        self._handles: list[RemovableHandle] = [
            block.register_forward_pre_hook(ModelHook(self._enter), with_kwargs=True),
            block.register_forward_hook(ModelHook(self._leave), prepend=True, with_kwargs=True),
        ]
        self._cut = CutTensors(cutting, lambda: not (self._aside or self._in_backward))
        self._handles += self._cut.handles
        self._hook_parameters(self._parameters)

    def _hook_parameters(self, parameters: Mapping[str, nn.Parameter]) -> None:
        for name, parameter in parameters.items():
            hook = ModelHook(partial(self._add, name))
            self._handles.append(parameter.register_hook(hook))  # type: ignore[no-untyped-call]

    def start_backward(self) -> None:
        """Calls of the block are recomputes from now on."""
        self._in_backward = True

    def set_aside(self, aside: bool) -> None:
        """While it is set, calls of the block are no part of the step."""
        self._aside = aside

    def remove(self) -> None:
        """Take all hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def end(self) -> GradientProof:
        """Run the block alone, and hold its gradients against those of the step."""
        self.remove()
        made, self._made = self._made, []
        proof = partial(GradientProof, self._name)
        if self._call is None:
            return proof(ProofStatus.NOT_CALLED)
        if self._calls > 1:
            return proof(ProofStatus.SEVERAL_CALLS)
        reached = [*self._output_gradients.values(), *self._handed_on.gradients.values()]
        if not reached:
            return proof(ProofStatus.NOT_REACHED)
        if any(version(self._parameters[name]) != before for name, before in self._versions.items()):
            return proof(ProofStatus.WEIGHTS_CHANGED)
        if not all(map(_is_finite, reached)):
            return proof(ProofStatus.NOT_FINITE)
        try:
            with whole_weights(self._block):
                alone = self._run_alone(self._call)
        except (RuntimeError, CkptSurgeryError, TypeError, ValueError) as error:
            return proof(ProofStatus.FAILED, detail=error_line(error))
        gradients = alone.gradients
        both = [name for name in gradients if name in self._gradients]
        finite = {name: (_is_finite(gradients[name]), _is_finite(self._gradients[name])) for name in both}
        if (False, False) in finite.values():  # half precision overflows inside a block, too
            return proof(ProofStatus.NOT_FINITE)
        errors = {
            name: relative_error(gradients[name], self._gradients[name]) if all(finite[name]) else 1.0 for name in both
        }
        wrong = {name: error for name, error in errors.items() if error}
        lost = {name: 1.0 for name in gradients if name not in self._gradients and bool(gradients[name].any())}
        nodes = {name: get_gradient_edge(p).node for name, p in self._parameters.items() if name in lost}
        nodes |= {name: node for name, node in self._contributions.nodes.items() if name in lost}
        passed_by = not_asked_for(nodes, made) if lost else set()
        lost = {name: error for name, error in lost.items() if name not in passed_by}
        if passed_by and not (wrong or lost):
            return proof(ProofStatus.NOT_ASKED_FOR)
        if (wrong or lost) and self._handed_on.untold:  # what reaches it through these is unknown here
            return proof(ProofStatus.HANDS_ON)
        right = ProofStatus.HANDS_ON_CUT if alone.hands_on_cut else ProofStatus.PROVED
        status = ProofStatus.WRONG if wrong or lost else right
        given = sum(tensor.nbytes for tensor in self._inputs)
        counts = (len(both) + len(lost), alone.kept, given)
        return proof(status, {**wrong, **lost}, *counts, cut=alone.cut, uses_cut_of=alone.uses_cut_of)

    def _enter(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._aside:
            return None
        if not self._in_backward:
            self._calls += 1
            if self._calls > 1:
                return None
            self._take_gathered()
            self._record(args, kwargs)
        if self._hooked or not torch.is_grad_enabled() or self._call is None:
            return None
        self._hooked = True
        named = [(name, value) for name, value in self._call.signature.named(args, kwargs) if _has_graph(value)]
        hidden = kwargs if _hides_keywords(block) else {}
        self._contributions = Contributions(
            (self._labels[name], value) for name, value in named if name in self._labels and name not in hidden
        )
        return args, {name: self._seen(name, value) if name in hidden else value for name, value in kwargs.items()}

    def _seen(self, name: str, value: Any) -> Any:
        """A view of an argument, whose gradient is what the block adds to that of the argument."""
        if name not in self._labels or not _has_graph(value):
            return value
        view = value.view_as(value)
        view.register_hook(partial(self._add, self._labels[name]))
        return view

    def _take_gathered(self) -> None:
        """Watch the whole parameters that FSDP2 has gathered for this call: it uses the same ones in the recompute."""
        gathered = {
            name: parameter
            for name, parameter in (self._block.named_parameters() if self._sharded else ())
            if name in self._sharded and not isinstance(parameter, DTensor)
        }
        self._hook_parameters(gathered)
        self._parameters |= gathered

    def _record(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        signature = BlockSignature.of(self._name, self._block, self._block.forward, fills_cache=False)
        arguments = signature.without_own_caches(*signature.without_use_cache(args, kwargs))
        self._handed_on = HandedOnTensors((args, kwargs))
        self._call = RecordedCall(self._block, self._block, signature, BlockState(self._block), arguments)
        self._inputs = [tensor.detach() for tensor in self._call.tensors]
        direct = [(name, value) for name, value in signature.named(args, kwargs) if isinstance(value, Tensor)]
        labels = {id(value): f"its argument {name}" for name, value in direct}
        # a tensor that is given twice has one, also where each of its places has another one in the recompute
        self._labels = {name: labels[id(value)] for name, value in direct}
        self._given = {
            place: labels[id(tensor)] for place, tensor in enumerate(self._call.tensors) if id(tensor) in labels
        }
        self._call.tensors = []
        self._states = torch_states(devices_of(self._block))
        self._casting = [(kind, torch.get_autocast_dtype(kind)) for kind in _KINDS if torch.is_autocast_enabled(kind)]
        self._call.begin(watching=True)

    def _leave(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Hand on views of what the block returns: the gradient of a view is none that the block itself adds to.

        This hook is the first: what later ones keep, such as hidden states, has to come from the views, too.
        """
        if self._aside or self._calls > 1 or self._call is None:
            return None
        if not self._in_backward:
            self._call.end()
            self._handed_on.note((args, kwargs), watch=self._hooked)
        if not self._hooked or self._seen_output:
            return None
        self._seen_output = True
        returned = Flattener(_has_graph)
        spec = returned.flatten(output)
        views = [tensor.view_as(tensor) for tensor in returned.tensors]
        self._made = [get_gradient_edge(view).node for view in views] + self._handed_on.nodes
        places = [id(tensor) for tensor in tensors(output)]  # also of those without a graph: alone, others have one
        tracked = set(map(id, _tracked(output) if self._in_backward else returned.tensors))
        self._cut_outputs = {place for place, tensor in enumerate(places) if tensor not in tracked}
        for tensor, view in zip(returned.tensors, views, strict=True):
            place = places.index(id(tensor))
            view.register_hook(partial(self._note_output, place))  # type: ignore[no-untyped-call]
        self._handles += self._contributions.watch(self._made, self._add)
        return unflatten(spec, views) if views else None

    def _add(self, name: str, gradient: Tensor | None) -> None:
        if gradient is None:  # custom functions may give none
            return
        before = self._gradients.get(name)
        gradient = gradient.detach()
        self._gradients[name] = gradient.clone() if before is None else before + gradient

    def _note_output(self, place: int, gradient: Tensor | None) -> None:
        if gradient is not None:
            self._output_gradients.setdefault(place, gradient.detach())

    def _run_alone(self, call: RecordedCall) -> _Alone:
        """Run the block without checkpointing, with the gradients that have reached it."""
        given = [tensor.detach().requires_grad_() for tensor in self._inputs]
        present = (*given, *self._block.parameters(), *self._parameters.values(), *self._block.buffers())
        known = {tensor.untyped_storage()._cdata for tensor in present}
        kept: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in known:
                kept[storage._cdata] = storage.nbytes()
            return tensor

        wanted = {label: given[place] for place, label in self._given.items()}
        wanted |= self._parameters
        with (
            torch.enable_grad(),
            torch_states_kept(self._states),
            _autocast(self._casting),
            call.as_at_entry() as stand_ins,
            _without_checkpointing(self._block),
            saved_tensors_hooks(keep, _same),
        ):
            arguments, used = self._with_cut_tensors(call.rebuilt(given, stand_ins))
            args, kwargs = arguments
            results = list(tensors(self._block(*args, **kwargs)))
        left = contained((args, kwargs))
        reached = [
            (results[n], gradient) for n, gradient in self._output_gradients.items() if results[n].requires_grad
        ]
        reached += [pair for pair in self._handed_on.reached_in(left) if pair[0].requires_grad]
        cut = [results[n] for n in self._cut_outputs if n < len(results) and results[n].requires_grad]
        cut += self._handed_on.cut_in(left)
        gradients: Sequence[Tensor | None] = torch.autograd.grad(
            [made for made, _ in reached],
            [*wanted.values(), *(tensor for _, tensor in used)],
            [gradient for _, gradient in reached],
            allow_unused=True,
            retain_graph=bool(cut),
        )
        found = zip(wanted, gradients[: len(wanted)], strict=True)
        of_used = zip(used, gradients[len(wanted) :], strict=True)
        return _Alone(
            {name: gradient for name, gradient in found if gradient is not None},
            sum(kept.values()),
            bool(cut),
            self._parameters_behind(cut),
            tuple(dict.fromkeys(maker for (maker, _), gradient in of_used if gradient is not None and gradient.any())),
        )

    def _with_cut_tensors(self, arguments: Arguments) -> tuple[Arguments, list[tuple[str, Tensor]]]:
        """The arguments, with a graph for what other blocks have handed on without: that, and whose it is."""
        placed = list(placed_tensors(arguments)) if self._cut else []
        makers = {path: maker for path, tensor in placed if (maker := self._cut.maker(tensor))}
        used = {path: tensor.detach().requires_grad_() for path, tensor in placed if path in makers}
        if used:
            arguments = put(arguments, (), used)
        return arguments, [(maker, used[path]) for path, maker in makers.items()]

    def _parameters_behind(self, made: Sequence[Tensor]) -> tuple[str, ...]:
        """The parameters that these tensors were made with."""
        if not made or not self._parameters:
            return ()
        ones = [torch.ones_like(tensor) for tensor in made]
        gradients: Sequence[Tensor | None] = torch.autograd.grad(
            made, list(self._parameters.values()), ones, allow_unused=True
        )
        return tuple(name for name, each in zip(self._parameters, gradients, strict=True) if each is not None)


@dataclass(frozen=True, slots=True)
class _Alone:
    """What the block made without checkpointing: its gradients by name, and the bytes that it kept for them.

    It `hands_on_cut` where something that it returns, or leaves in its arguments, had no graph in the step: `cut` and
    `uses_cut_of` are those of `GradientProof`.
    """

    gradients: Mapping[str, Tensor]
    kept: int
    hands_on_cut: bool
    cut: tuple[str, ...]
    uses_cut_of: tuple[str, ...]


_KINDS = ("cpu", "cuda")


def _hides_keywords(block: nn.Module) -> bool:
    """Whether the graph of a call does not show what its keywords lead to: the library's reentrant checkpointing."""
    function = vars(block).get(FUNCTION)
    options = options_of(inspect.unwrap(function)) if function is not None else None
    return options is not None and options[0].get("use_reentrant") is not False


def _is_finite(gradient: Tensor) -> bool:
    return bool(gradient.isfinite().all())


def _has_graph(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _tracked(output: Any) -> Iterable[Tensor]:
    """The outputs to which reentrant checkpointing gives a graph, where hooks run inside of it."""
    outputs = output if isinstance(output, tuple) else (output,)
    return [value for value in outputs if isinstance(value, Tensor)]


def _same(tensor: Tensor) -> Tensor:
    return tensor


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
