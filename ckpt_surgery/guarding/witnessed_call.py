"""Watch one call of a block in a step and the gradients that reach it, and run the same call alone.

To run it again without checkpointing takes the memory of one call of one block.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks
from torch.utils.checkpoint import CheckpointFunction

from ckpt_surgery.errors import GuardError
from ckpt_surgery.guarding.call_graph import CallGraph, HandedOnTensors, add_gradient, watched_view
from ckpt_surgery.measure.compare import relative_error
from ckpt_surgery.measure.generators import devices_of
from ckpt_surgery.measure.model_hook import is_selective
from ckpt_surgery.measure.own_checkpoints import is_composable, packing_hook
from ckpt_surgery.measure.restore import without_gradients
from ckpt_surgery.model_patches.release_names import FUNCTION
from ckpt_surgery.runtime.blocks.library_switch import flags_of, options_of
from ckpt_surgery.runtime.checkpoint.block_forward import BlockForward
from ckpt_surgery.runtime.checkpoint.call_arguments import Arguments, BlockSignature
from ckpt_surgery.runtime.checkpoint.recorded_call import RecordedCall
from ckpt_surgery.runtime.checkpoint.state import Attribute, BlockState, put_for
from ckpt_surgery.runtime.self_check.fingerprints import Fingerprint
from ckpt_surgery.runtime.tools.classes import is_managed, library_of
from ckpt_surgery.runtime.tools.containers import PLAIN, Flattener, tensors, unflatten
from ckpt_surgery.runtime.tools.rng import torch_states, torch_states_kept
from ckpt_surgery.runtime.tools.tensors import is_differentiable, is_plain, version, versions
from ckpt_surgery.runtime.tools.untiled import untiled
from ckpt_surgery.torch_names import COMPOSABLE_CHECKPOINT
from ckpt_surgery.undo import UndoableHooks


class WitnessedCall:
    """A watch on one call of `block` with these arguments, made as the call begins in the forward.

    Call `hook` as the block begins to build its `graph`, at once or in the recompute, and `leave` as it returns.

    Seen in the step: `autocast` is the device type and dtype of autocast. `selective`: a policy of its checkpoint
    keeps some results. `through_hooks`: saved-tensor hooks of the script are around it. `cut_off`: reentrant
    checkpointing is given nothing that needs gradient; `in_containers`: because all that does is in a container or
    comes by keyword. `recast`: its recompute began under another autocast. `overwritten` names arguments without a
    graph into which its recompute wrote what has one.

    Seen when run alone: `alone_gradients` are those of its arguments, by name. `repeated`: it returned the same as in
    the forward. `checkpointed`: parts of it ran again in the backward.
    """

    def __init__(self, name: str, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._block = block
        signature = BlockSignature.of(name, block, block.forward, fills_cache=False)
        arguments = signature.without_own_caches(args, kwargs)
        self.graph = CallGraph()
        self.handed_on = HandedOnTensors((args, kwargs))
        self._record = RecordedCall(block, signature, BlockState(block), arguments)
        self._inputs = [tensor.detach() for tensor in self._record.tensors]
        direct = [(label, value) for label, value in signature.named(args, kwargs) if isinstance(value, Tensor)]
        labels = {id(value): f"its argument {label}" for label, value in direct}
        # a tensor that is given twice has one label, even if the recompute is given two tensors in its place
        self._labels = {label: labels[id(value)] for label, value in direct}
        self._given = {
            place: labels[id(tensor)] for place, tensor in enumerate(self._record.tensors) if id(tensor) in labels
        }
        seen = any(tensor.requires_grad for tensor in seen_by_reentrant(block, args, kwargs))
        self.cut_off = not seen and runs_reentrant(block)
        self.in_containers = self.cut_off and bool(self._inputs)
        self.overwritten: list[str] = []
        self._without_graph: list[tuple[str, Tensor]] = []
        self._record.tensors = []
        beside = [*(value for value in arguments[0] if not isinstance(value, Tensor)), *arguments[1].values()]
        self._is_plain = not _leads_to(tuple(beside), lambda tensor: tensor.requires_grad)
        self._states = torch_states(devices_of(block))
        self.autocast = autocast_now()
        self.recast = False
        self.selective = is_selective()
        self.through_hooks = (hook := packing_hook()) is not None and library_of(hook) != "torch"
        self._given_versions = versions(self._inputs)
        self._output_gradients: dict[int, Tensor] = {}
        self._outputs: list[tuple[Tensor, int]] = []
        self._alone_results: list[Tensor] = []
        self._recompute_equal: bool | None = None
        self._draws = False
        self._generators_differ = _library_options(block).get("preserve_rng_state") is False
        self._weights: dict[str, Fingerprint] = {}
        self.alone_gradients: dict[str, Tensor] = {}
        self.repeated = True
        self.checkpointed = False
        self._record.begin(watching=True)

    @property
    def hides_gradients(self) -> bool:
        """Whether gradients can bypass its graph: reentrant checkpointing sees no keywords or containers."""
        return self.graph.reentrant and not self._is_plain

    @property
    def drew_anew(self) -> bool:
        """Whether it draws random numbers, and its recompute began with other generator states than its forward."""
        return self._draws and self._generators_differ

    @property
    def written(self) -> list[Attribute]:
        """What the forward wrote to the block's modules."""
        return self._record.written()

    @property
    def given_bytes(self) -> int:
        """The bytes of the tensors with gradient that it was given."""
        return sum(tensor.nbytes for tensor in self._inputs)

    @property
    def reached(self) -> list[Tensor]:
        """The gradients that have reached it."""
        return [*self._output_gradients.values(), *self.handed_on.gradients.values()]

    def hook(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        parameters: Mapping[str, nn.Parameter],
        *,
        in_backward: bool,
    ) -> None:
        """Watch the graph that the block builds from these arguments; `in_backward` marks a recompute."""
        direct = [pair for pair in self._record.signature.named(args, kwargs) if isinstance(pair[1], Tensor)]
        self._without_graph = [(name, value) for name, value in direct if in_backward and not value.requires_grad]
        named = [(name, value) for name, value in direct if value.requires_grad]
        given = [(self._labels[name], value) for name, value in named if name in self._labels]
        self.graph.begin(given, parameters, reentrant=in_backward)

    def begin_recompute(self) -> None:
        """Note whether the recompute would draw other random numbers than the forward, or cast to another dtype."""
        self._generators_differ |= self._generators_moved()
        self.recast |= autocast_now()[1] != self.autocast[1]

    def _generators_moved(self) -> bool:
        now = torch_states(devices_of(self._block))
        return any(not torch.equal(state, now[device]) for device, state in self._states.items())

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, *, in_backward: bool) -> Any:
        """Note that the block returns `output`; return what to hand on in its place, or None."""
        if not in_backward:
            self._record.end()
            self.handed_on.note((args, kwargs), watch=self.graph.begun)
            self._outputs = [(tensor.detach(), version(tensor)) for tensor in tensors(output)]
            self._weights = _weights_of(self._block)
            self._given_versions = versions(self._inputs)
        else:
            self._recompute_equal = self._are_equal(list(tensors(output)))
            self.overwritten = [name for name, value in self._without_graph if value.requires_grad]
            self._without_graph = []
        if not self.graph.begun or self.graph.watched:
            return None
        results = output if type(output) is tuple else (output,)
        inner = tuple(value for value in results if not isinstance(value, Tensor))
        self._is_plain &= not _leads_to(inner, is_differentiable)
        returned = Flattener()
        spec = returned.flatten(output)
        places = [id(tensor) for tensor in tensors(output)]  # those without a graph count: alone, they may have one
        views = [watched_view(t, self._output_gradients, places.index(id(t))) for t in returned.tensors]
        self.graph.watch([get_gradient_edge(view).node for view in views] + self.handed_on.nodes)
        return unflatten(spec, views) if views else None

    def release(self) -> None:
        self.graph.release()
        self.handed_on.nodes.clear()
        self._output_gradients.clear()
        self.alone_gradients.clear()
        self._outputs.clear()
        self._alone_results.clear()
        self._inputs.clear()
        del self._record

    def drifts(self) -> bool:
        """Tell whether the recompute, too, gave something else than the forward; if not seen, run alone once more.

        Call this if it was not `repeated`: what it depends on may be gone since the backward.
        """
        if self._recompute_equal is not None:
            return not self._recompute_equal
        if self.selective:  # what varies may be what is kept
            return False
        with torch.no_grad(), self._on_its_state():
            _, results = self._run(self._inputs)
        return not all(map(_repeats, self._alone_results, results))

    @contextmanager
    def _on_its_state(self) -> Iterator[None]:
        """Put the block in the state of its forward without checkpointing inside the `with`, and restore it on exit.

        Run the backward inside too: functions of the block may run parts of it again. Raises GuardError if such a
        function adds to the gradients of parameters, which are set aside meanwhile.
        """
        parameters = list(self._block.parameters())
        with (
            torch_states_kept(self._states),
            self._record.restoring() or nullcontext(),
            _without_checkpointing(self._block),
            without_gradients(self._block),
        ):
            yield
            if any(parameter.grad is not None for parameter in parameters):
                raise GuardError("a function in it adds to gradients by itself, as one that checkpoints may do")

    def _run(self, given: Sequence[Tensor]) -> tuple[Arguments, list[Tensor]]:
        kind, precision = self.autocast
        with (
            torch.autocast("cpu", enabled=False),
            torch.autocast("cuda", enabled=False),
            torch.autocast(kind, dtype=precision, enabled=precision is not None, cache_enabled=False),
        ):
            self._record.refuse_written()
            args, kwargs = self._record.rebuilt(given)
            results = list(tensors(self._block(*args, **kwargs)))
            self._draws = self._generators_moved()
            return (args, kwargs), results

    def _are_equal(self, results: Sequence[Tensor]) -> bool:
        """Tell whether these results equal the forward's, unless no gradient reaches them or they were overwritten."""
        return len(results) == len(self._outputs) and all(
            version(output) != before or _repeats(output, result.detach(), self._output_gradients.get(place))
            for place, ((output, before), result) in enumerate(zip(self._outputs, results, strict=True))
        )

    def _note_rerun(self, *_: object) -> None:
        self.checkpointed = True

    def exchanged(self) -> list[str]:
        """Name the block's parameters, buffers and arguments whose values differ from those in the forward.

        This also sees writes through `.data`, though not to arguments. It waits for the device.
        """
        now = _weights_of(self._block)
        weights = [(name, before, now[name]) for name, before in self._weights.items() if name in now]
        pairs = enumerate(zip(self._given_versions, versions(self._inputs), strict=True))
        written = [place for place, (before, after) in pairs if before != after]
        given = [f"{self._given.get(place, 'an argument')} (written in place)" for place in written]
        return [name for name, before, after in weights if int(before.bits) != int(after.bits)] + given

    def run_alone(self, parameters: Mapping[str, nn.Parameter], sums: dict[str, Tensor]) -> int:
        """Run the block and its backward without checkpointing, and return the bytes that it kept.

        This adds the gradients of `parameters` to `sums`.
        """
        given = [tensor.detach().requires_grad_() for tensor in self._inputs]
        present = (*given, *self._block.parameters(), *parameters.values(), *self._block.buffers())
        with self._on_its_state():
            return self._gradients_alone(given, present, parameters, sums)

    def _gradients_alone(
        self,
        given: Sequence[Tensor],
        present: Iterable[Tensor],
        parameters: Mapping[str, nn.Parameter],
        sums: dict[str, Tensor],
    ) -> int:
        with torch.enable_grad(), _noting_kept(present) as kept:
            arguments, results = self._run(given)
        self.repeated = self._are_equal(results)
        if not self.repeated:
            self._alone_results = [result.detach() for result in results]
        pairs = [(results[place], gradient) for place, gradient in self._output_gradients.items()]
        pairs += self.handed_on.reached_in(arguments)
        reached = [(result, gradient) for result, gradient in pairs if result.requires_grad]
        wanted = {label: given[place] for place, label in self._given.items()}
        with UndoableHooks([part.register_forward_pre_hook(self._note_rerun) for part in self._block.modules()]):
            made: Sequence[Tensor | None] = torch.autograd.grad(
                [result for result, _ in reached],
                [*parameters.values(), *wanted.values()],
                [gradient for _, gradient in reached],
                allow_unused=True,
            )
        gradients = iter(made)
        for home, names in ((sums, parameters), (self.alone_gradients, wanted)):
            for name in names:
                add_gradient(home, name, next(gradients))
        return sum(kept.values())


def runs_reentrant(block: nn.Module) -> bool:
    """Tell whether an entered block is checkpointed in reentrant mode, by its layer or by its caller."""
    if FUNCTION in vars(block) and torch.is_grad_enabled() and any(getattr(block, flag) for flag in flags_of(block)):
        return _library_options(block).get("use_reentrant") is True
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not CheckpointFunction.forward.__code__:
        frame = frame.f_back
    return frame is not None


def seen_by_reentrant(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """Yield the tensors that a reentrant checkpoint of a block sees: all of them under `wrap_blocks`."""
    wrapped = isinstance(vars(block).get("forward"), BlockForward)
    return tensors((args, kwargs) if wrapped else [value for value in args if isinstance(value, Tensor)])


def autocast_now() -> tuple[str, torch.dtype | None]:
    """Return the device type for which autocast is on, if any, and the dtype to which it casts."""
    kind = next(filter(torch.is_autocast_enabled, ("cpu", "cuda")), "cpu")
    return kind, torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def _library_options(block: nn.Module) -> Mapping[str, Any]:
    """Return the options that the library's switch gave to a layer's checkpointing function, if known."""
    function = vars(block).get(FUNCTION)  # `EntryCounter` puts a function around the library's
    options = options_of(function) or options_of(getattr(function, "__wrapped__", function)) if function else None
    return options[0] if options else {}


def _weights_of(block: nn.Module) -> dict[str, Fingerprint]:
    """Fingerprint each parameter and buffer that no library moves in and out."""
    named = (*block.named_parameters(), *block.named_buffers())
    made = {name: Fingerprint.of(tensor) for name, tensor in named if is_plain(tensor) and not is_managed(tensor)}
    return {name: sums for name, sums in made.items() if sums is not None}


def _repeats(output: Tensor, result: Tensor, gradient: Tensor | None = None) -> bool:
    """Tell whether two results of a block are the same where the `gradient` is not zero; inf and nan aside."""
    if output.shape != result.shape or output.dtype != result.dtype:
        return False
    if not is_plain(output) or output.is_sparse or not is_differentiable(output):
        return True
    if gradient is not None and gradient.shape == output.shape and is_plain(gradient):
        output, result = (torch.where(gradient != 0, each, 0) for each in (output, result))
    finite = bool(output.isfinite().all()), bool(result.isfinite().all())
    return finite[0] == finite[1] and (not all(finite) or not relative_error(output, result))


def _leads_to(value: Any, hidden: Callable[[Tensor], bool]) -> bool:
    """Tell whether a value leads to a `hidden` tensor, or to something mutable or unknown."""
    if isinstance(value, Tensor):
        return hidden(value)
    return any(_leads_to(item, hidden) for item in value) if type(value) is tuple else type(value) not in PLAIN


@contextmanager
def _noting_kept(present: Iterable[Tensor]) -> Iterator[Mapping[int, int]]:
    """Note the bytes of each storage that graphs made inside keep, without those of tensors already `present`."""
    known = {tensor.untyped_storage()._cdata for tensor in present}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            kept[storage._cdata] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        yield kept


@contextmanager
def _without_checkpointing(block: nn.Module) -> Iterator[None]:
    """Switch off all checkpointing and tiling in a block inside the `with`, whatever library does it."""
    with ExitStack() as stack:
        stack.enter_context(untiled())
        for module in block.modules():
            if is_composable(module):
                put_for(stack, vars(sys.modules[COMPOSABLE_CHECKPOINT].checkpoint.state(module)), "enable_hook", False)
            for name in flags_of(module):
                put_for(stack, vars(module), name, False)
            if FUNCTION in vars(module):
                put_for(stack, vars(module), FUNCTION, None)
        yield
