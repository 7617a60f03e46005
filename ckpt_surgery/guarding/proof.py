"""Compare a block's gradients in a step with those of the block alone without checkpointing.

The block's inputs and the gradients of its outputs are kept for one step. Then it runs once more on them, call by
call, in the memory of one call of one block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.distributed.tensor import DTensor

from ckpt_surgery.guarding.block_writes import BlockWrites
from ckpt_surgery.guarding.call_graph import add_gradient, not_asked_for
from ckpt_surgery.guarding.entry_looks import AUTOCAST
from ckpt_surgery.guarding.faults import CoverageCause
from ckpt_surgery.guarding.steps import StepWatch, WatchedPhase
from ckpt_surgery.guarding.witnessed_call import WitnessedCall
from ckpt_surgery.measure.compare import relative_error
from ckpt_surgery.measure.model_hook import ModelHook
from ckpt_surgery.runtime.checkpoint.state import HOOKING
from ckpt_surgery.runtime.checkpoint.zero3 import whole_weights
from ckpt_surgery.runtime.self_check.routing import has_router
from ckpt_surgery.runtime.tools.classes import PACKAGE, is_flattened, library_of
from ckpt_surgery.runtime.tools.tensors import version
from ckpt_surgery.text import error_line
from ckpt_surgery.torch_names import CALL_HOOKS, current_graph_task_id

_BACKWARD = ("_backward_pre_hooks", "_backward_hooks")
_COMPUTING = HOOKING | {PACKAGE}


class ProofStatus(StrEnum):
    """The ways in which the proof of a block ends."""

    # the gradients were compared
    PROVED = "proved"
    WRONG = "wrong"
    WRITTEN_TWICE = "writes on its modules once more in its recompute"
    OTHER_OUTPUT = "recomputed on something else than its forward"
    REENTRANT = "checkpointed in reentrant mode by its library"
    # not proved in this step, perhaps in another
    NOT_YET = "not yet"
    NOT_CALLED = "not seen to run"
    NOT_REACHED = "no gradient reached it"
    NOT_ASKED_FOR = "not all of its gradients were asked for"
    NOT_FINITE = "its gradients were inf or nan"
    EARLIER_FORWARD = "an earlier forward may have a part in its gradients"
    SEVERAL_CALLS = "runs several times in a step"
    WEIGHTS_CHANGED = "its weights changed in the backward"
    CUT_OFF = "cut off in reentrant mode: none of its inputs needs gradient"
    # not to be proved in such a block
    HANDS_ON = "hands tensors on otherwise than as its result, and others use them"
    HOOKED = "hooks on it would run once more"
    SPLIT = "its parameters are split over ranks, and not gathered as it begins"
    FLATTENED = "sharded by FSDP1, which a proof cannot gather"
    IN_ITSELF = "checkpoints in itself, so that it cannot be run without"
    NOT_REPEATABLE = "gives something else when it is run alone"
    # the proof itself failed
    FAILED = "could not be run alone"
    NO_MEMORY = "given up for want of memory"


@dataclass(frozen=True, slots=True)
class GradientProof:
    """The proof of one block's gradients.

    `errors` are the relative errors of the gradients that differ, by the name of the parameter or argument, and
    `compared` counts the gradients compared. `alone_bytes` is what the block keeps without checkpointing, and
    `given_bytes` what it was given. `detail` says why it could not be run. `exchanged` names weights and buffers whose
    values are not those of the forward, `rewritten` attributes and buffers that its recompute wrote again, `grown`
    containers likewise, and `overwritten` arguments into which, in reentrant mode, it writes what has a gradient.
    Wrong gradients may have a `cause`, and be `factor` times the right ones.
    """

    name: str
    status: ProofStatus
    errors: Mapping[str, float] = field(default_factory=dict)
    compared: int = 0
    alone_bytes: int = 0
    given_bytes: int = 0
    detail: str = ""
    exchanged: Sequence[str] = ()
    rewritten: Sequence[str] = ()
    grown: Sequence[str] = ()
    overwritten: Sequence[str] = ()
    cause: CoverageCause = CoverageCause.UNKNOWN
    factor: int = 0


class BlockWitness(StepWatch):
    """Watches one block for one step. `end` after the backward gives the proof.

    Parameters that other parts of the model use too are left out, and what the loss or another model adds to
    gradients. Instead of a sharded parameter, the whole one that FSDP2 gathers before the block runs is watched: its
    gradient is this rank's own, before it is averaged.
    """

    def __init__(self, name: str, model: nn.Module, block: nn.Module) -> None:
        super().__init__()
        self.name = name
        self._block = block
        shared = {id(p) for module in _reached_without(block, model) for p in module.parameters(recurse=False)}
        named = block.named_parameters()
        wanted = {path: p for path, p in named if id(p) not in shared and p.requires_grad and p.is_leaf}
        self._sharded = {path for path, p in wanted.items() if isinstance(p, DTensor)}
        self._parameters = {path: p for path, p in wanted.items() if path not in self._sharded}
        self._versions = {path: version(p) for path, p in self._parameters.items()}
        self._calls: list[WitnessedCall] = []
        self._writes = BlockWrites(block)
        self._script_hooks = False
        self._gradients: dict[str, Tensor] = {}
        self._nested: dict[str, Tensor] = {}  # of backwards inside the step's, as reentrant checkpointing has them
        self._task = -1  # autograd's number of the step's backward
        self._results: Sequence[Node] = ()
        self._handles += [
            block.register_forward_pre_hook(ModelHook(self._enter), with_kwargs=True),
            block.register_forward_hook(ModelHook(self._leave), prepend=True, with_kwargs=True),
        ]
        self._hook_parameters(self._parameters)

    def enter(self, phase: WatchedPhase) -> None:
        super().enter(phase)
        if phase is WatchedPhase.BACKWARD:
            self._task = current_graph_task_id()
            self._writes.begin_backward()

    def note_results(self, nodes: Sequence[Node]) -> None:
        self._results = nodes

    def recompute(self, block: nn.Module) -> None:
        """Note that a block begins its recompute, which its own hooks may miss."""
        if block is self._block and len(self._calls) == 1:
            self._begin_recompute(self._calls[0])

    def _begin_recompute(self, call: WitnessedCall) -> None:
        call.begin_recompute()
        self._writes.begin_recompute()

    def release(self) -> None:
        for call in self._calls:
            call.release()
        for held in (self._calls, self._gradients, self._nested):
            held.clear()
        self._results = ()

    def end(self, unprovable: ProofStatus | None = None) -> GradientProof:
        """Run the block alone and compare it with the step, unless the caller knows why it is `unprovable`.

        Call this after `undo`.
        """
        try:
            rewritten, grown = self._writes.written_again()
            status = self._unprovable() if unprovable is None else unprovable
            contained = status is ProofStatus.CUT_OFF and any(call.in_containers for call in self._calls)
            cause = CoverageCause.IN_CONTAINER if contained else CoverageCause.UNKNOWN
            proof = GradientProof(self.name, status, cause=cause) if status is not None else self._proof(rewritten)
            proof = replace(proof, overwritten=sorted({name for call in self._calls for name in call.overwritten}))
            if unprovable is None and (rewritten or grown):
                status = ProofStatus.WRITTEN_TWICE if proof.status is ProofStatus.PROVED else proof.status
                return replace(proof, status=status, rewritten=rewritten, grown=grown)
            return proof
        except torch.OutOfMemoryError:
            return GradientProof(self.name, ProofStatus.NO_MEMORY)
        finally:
            self.release()

    def _proof(self, written: Sequence[str]) -> GradientProof:
        calls = [call for call in self._calls if call.reached]
        expected: dict[str, Tensor] = {}
        try:
            with whole_weights(self._block):
                # in the order in which a backward adds up what they give to parameters
                kept = sum([call.run_alone(self._parameters, expected) for call in reversed(calls)])
                drifts = any(call.drifts() for call in calls if not call.repeated)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever the code of a block raises
            return GradientProof(self.name, ProofStatus.FAILED, detail=error_line(error))
        expected, of_step = self._by_name(calls, expected)
        status, errors, compared = self._judged(calls, expected, of_step)
        others = [call for call in calls if not call.repeated]
        if others and compared and status in (ProofStatus.PROVED, ProofStatus.REENTRANT):
            exchanged = {name for call in others for name in call.exchanged()} - set(written)
            exchanged |= {AUTOCAST} if any(call.recast for call in others) else set()
            routed = not exchanged and has_router(self._block, surely=True)
            cause = CoverageCause.CHOOSES_EXPERTS if routed else CoverageCause.UNKNOWN
            return GradientProof(self.name, ProofStatus.OTHER_OUTPUT, exchanged=sorted(exchanged), cause=cause)
        if others and status is ProofStatus.WRONG and not drifts:
            return GradientProof(self.name, ProofStatus.NOT_REPEATABLE)
        if status is ProofStatus.PROVED and any(call.checkpointed for call in calls):
            return GradientProof(self.name, ProofStatus.IN_ITSELF)
        given = sum(call.given_bytes for call in calls)
        causes = {
            CoverageCause.DRAWN_ANEW: any(call.drew_anew for call in calls),
            CoverageCause.RECAST: any(call.recast for call in calls),
            CoverageCause.THROUGH_HOOKS: any(call.through_hooks for call in calls),
        }
        cause = next((known for known, seen in causes.items() if seen), CoverageCause.UNKNOWN)
        factor = _factor([(expected[name], of_step.get(name)) for name in errors if name in expected])
        return GradientProof(self.name, status, errors, compared, kept, given, cause=cause, factor=factor)

    def _judged(
        self, calls: Sequence[WitnessedCall], expected: Mapping[str, Tensor], of_step: Mapping[str, Tensor]
    ) -> tuple[ProofStatus, dict[str, float], int]:
        """Compare the step's gradients with those expected; return status, errors by name, and the number compared."""
        errors = {name: _error(expected[name], of_step[name]) for name in expected if name in of_step}
        for name in [name for name in self._parameters if errors.get(name)]:
            own: dict[str, Tensor] = {}  # without what other uses of the parameter add in the step
            for call in reversed(calls):
                add_gradient(own, name, call.graph.of_parameters.get(name))
            if (gradient := own.get(name, self._nested.get(name))) is not None:
                errors[name] = _error(expected[name], gradient.to(expected[name].dtype))
            elif calls[0].autocast[1] is not None:  # it was cast before the block ran, for its other uses too
                del errors[name]
        if None in errors.values():  # half precision may overflow inside the block
            return ProofStatus.NOT_FINITE, {}, 0
        missing = [name for name, gradient in expected.items() if name not in of_step and bool(gradient.any())]
        passed_by = self._passed_by(missing, calls)
        lost = {name: 1.0 for name in missing if name not in passed_by}
        wrong = {name: error for name, error in errors.items() if error} | lost
        compared = len(errors) + len(lost)
        if wrong:  # gradients that reached the block unwatched may be what is missing
            unwatched = any(call.handed_on.unwatched or call.graph.is_used_besides(self._results) for call in calls)
            return (ProofStatus.HANDS_ON, {}, compared) if unwatched else (ProofStatus.WRONG, wrong, compared)
        if passed_by:
            return ProofStatus.NOT_ASKED_FOR, {}, compared
        hides = any(call.hides_gradients for call in calls)
        return ProofStatus.REENTRANT if hides else ProofStatus.PROVED, {}, compared

    def _unprovable(self) -> ProofStatus | None:
        """Return why the gradients cannot be proved; None if the block has to run alone."""
        calls = self._calls
        if not calls:
            return ProofStatus.NOT_CALLED
        if any(map(is_flattened, self._block.parameters())):
            return ProofStatus.FLATTENED
        if len(calls) > 1 and not all(call.graph.begun for call in calls):
            return ProofStatus.SEVERAL_CALLS
        reached = [gradient for call in calls for gradient in call.reached]
        if not reached:
            return ProofStatus.CUT_OFF if any(call.cut_off for call in calls) else ProofStatus.NOT_REACHED
        if not self._sharded <= self._parameters.keys():
            return ProofStatus.SPLIT
        if any(version(self._parameters[name]) != before for name, before in self._versions.items()):
            return ProofStatus.WEIGHTS_CHANGED
        on_gradients = [hook for p in self._parameters.values() for hook in (p._backward_hooks or {}).values()]
        others = any(not isinstance(hook, ModelHook) for hook in on_gradients)  # they would change gradients again
        if self._script_hooks or others or _has_script_hooks(self._block):
            return ProofStatus.HOOKED
        return None if all(map(_is_finite, reached)) else ProofStatus.NOT_FINITE

    def _by_name(
        self, calls: Sequence[WitnessedCall], expected: dict[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the gradients of the block alone and those of the step, arguments included.

        Those of arguments are left out for a call that hides gradients: what it adds to them cannot be seen.
        """
        of_step = dict(self._gradients)
        if (precision := calls[0].autocast[1]) is not None:  # autocast casts a weight once for all that use it
            expected, of_step = ({n: g.to(precision) for n, g in each.items()} for each in (expected, of_step))
        for suffix, call in _numbered(calls):
            if not call.hides_gradients:
                expected |= {name + suffix: gradient for name, gradient in call.alone_gradients.items()}
                of_step |= {name + suffix: gradient for name, gradient in call.graph.gradients.items()}
        return expected, of_step

    def _passed_by(self, missing: Sequence[str], calls: Sequence[WitnessedCall]) -> set[str]:
        """Return those of the missing gradients that this backward was not asked for."""
        if not missing:
            return set()
        nodes = {name: get_gradient_edge(p).node for name, p in self._parameters.items() if name in missing}
        for suffix, call in _numbered(calls):
            nodes |= {name + suffix: node for name, node in call.graph.nodes.items() if name + suffix in missing}
        return not_asked_for(nodes, [node for call in calls for node in call.graph.made])

    def _hook_parameters(self, parameters: Mapping[str, nn.Parameter]) -> None:
        for name, parameter in parameters.items():
            note = ModelHook(partial(self._note, name))
            self._handles.append(parameter.register_hook(note))  # type: ignore[no-untyped-call]

    def _note(self, name: str, gradient: Tensor | None) -> None:
        add_gradient(self._gradients, name, gradient)
        if self._task not in (-1, current_graph_task_id()):
            add_gradient(self._nested, name, gradient)

    def _enter(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.phase is WatchedPhase.FORWARD:
            if not self._calls:
                self._take_gathered()
                self._script_hooks = _has_script_hooks(self._block)
            self._calls.append(WitnessedCall(self.name, self._block, args, kwargs))
            self._calls[-1].cut_off &= bool(self._parameters or self._sharded)
        call = self._running()
        if call is not None and self.phase is WatchedPhase.BACKWARD:
            self._begin_recompute(call)
        if call is not None and not call.graph.begun and torch.is_grad_enabled():
            call.hook(args, kwargs, self._parameters, in_backward=self.phase is WatchedPhase.BACKWARD)

    def _running(self) -> WitnessedCall | None:
        """Return the running call of the step, if any. With several, nothing says which is being recomputed."""
        if self.phase is WatchedPhase.ASIDE or (self.phase is WatchedPhase.BACKWARD and len(self._calls) > 1):
            return None
        return self._calls[-1] if self._calls else None

    def _take_gathered(self) -> None:
        """Watch the whole parameters that FSDP2 gathered for this call: its recompute uses the same ones."""
        named = self._block.named_parameters() if self._sharded else ()
        gathered = {name: p for name, p in named if name in self._sharded and not isinstance(p, DTensor)}
        self._hook_parameters(gathered)
        self._parameters |= gathered

    def _leave(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Return the replacement for what the block returns.

        This hook comes first: what later ones keep, such as hidden states, has to come from the replacement too.
        """
        call = self._running()
        if call is None:
            return None
        in_backward = self.phase is WatchedPhase.BACKWARD
        result = call.leave(args, kwargs, output, in_backward=in_backward)
        if not in_backward:
            self._writes.note(call.written)
        return result


def _factor(pairs: Sequence[tuple[Tensor, Tensor | None]]) -> int:
    """Return the whole number of times by which all gradients are larger than expected; 0 if there is none."""
    factors = set()
    for expected, of_step in pairs:
        if of_step is None or not (expected.any() and _is_finite(expected) and _is_finite(of_step)):
            return 0
        ratio = float((of_step.double() * expected.double()).sum() / expected.double().square().sum())
        factors.add(round(ratio) if not relative_error(expected * round(ratio), of_step) else 0)
    factor = factors.pop() if len(factors) == 1 else 0
    return max(factor, 0)


def _reached_without(block: nn.Module, model: nn.Module) -> set[nn.Module]:
    """Return the modules of a model that are also reached outside of a block."""
    reached: set[nn.Module] = set()
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if module is not block and module not in reached:
            reached.add(module)
            waiting += module.children()
    return reached


def _numbered(calls: Sequence[WitnessedCall]) -> Iterator[tuple[str, WitnessedCall]]:
    """Yield calls with the suffix for their names, which is empty for a single call."""
    for number, call in enumerate(calls, 1):
        yield f" in call {number}" if len(calls) > 1 else "", call


def _error(expected: Tensor, of_step: Tensor) -> float | None:
    """Return the relative error of a gradient; None if it is inf or nan both in the step and in the block alone."""
    finite = _is_finite(expected), _is_finite(of_step)
    if not any(finite):
        return None
    return relative_error(expected, of_step) if all(finite) else 1.0


def _is_finite(gradient: Tensor) -> bool:
    return bool(gradient.isfinite().all())


def _has_script_hooks(block: nn.Module) -> bool:
    """Tell whether a block or a module in it has hooks that a proof would run again.

    Ours do not count, nor do those of libraries around forwards, which are part of the computation.
    """
    return any(
        not isinstance(hook, ModelHook) and (table in _BACKWARD or library_of(hook) not in _COMPUTING)
        for module in block.modules()
        for table in CALL_HOOKS
        for hook in getattr(module, table, {}).values()
    )
