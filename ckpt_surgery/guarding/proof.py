"""The gradients of one block in a step, held against those of the block alone without checkpointing.

The block's inputs and the gradient that reaches its outputs are kept for one step, after which it is run once more on
them, call by call: that takes the memory of one call of one block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.distributed.tensor import DTensor

from ckpt_surgery.errors import CkptSurgeryError
from ckpt_surgery.guarding.call_graph import add_gradient, not_asked_for
from ckpt_surgery.guarding.steps import StepWatch, WatchedPhase
from ckpt_surgery.guarding.witnessed_call import WitnessedCall
from ckpt_surgery.measure.compare import relative_error
from ckpt_surgery.measure.model_hook import ModelHook
from ckpt_surgery.runtime.checkpoint.zero3 import whole_weights
from ckpt_surgery.runtime.tools.tensors import version
from ckpt_surgery.text import error_line


class ProofStatus(StrEnum):
    """The ways in which the proof of a block ends."""

    PROVED = "proved"
    WRONG = "wrong"
    NOT_YET = "not yet"
    SEVERAL_CALLS = "runs several times in a step"
    EARLIER_FORWARD = "an earlier forward may have a part in its gradients"
    NOT_CALLED = "did not run"
    NOT_REACHED = "no gradient reached it"
    HANDS_ON = "adds tensors to what it was given, which others use"
    REENTRANT = "checkpointed in reentrant mode by its library"
    WEIGHTS_CHANGED = "its weights changed in the backward"
    NOT_FINITE = "its gradients were inf or nan"
    NOT_ASKED_FOR = "not all of its gradients were asked for"
    HOOKED = "hooks of the script on its parameters would run once more"
    FAILED = "could not be run alone"


@dataclass(frozen=True, slots=True)
class GradientProof:
    """The proof of one block's gradients.

    `errors` are the relative errors of the gradients that differ, by the name of the parameter or argument, and
    `compared` counts those that were held against each other. `alone_bytes` is what the block keeps without
    checkpointing, and `given_bytes` what it was given. `detail` says why it could not be run.
    """

    name: str
    status: ProofStatus
    errors: Mapping[str, float] = field(default_factory=dict)
    compared: int = 0
    alone_bytes: int = 0
    given_bytes: int = 0
    detail: str = ""


class BlockWitness(StepWatch):
    """Watch one block for one step. `end` after the backward gives the proof.

    Parameters that something else in the model uses, too, are left out. In place of a sharded one, the whole one is
    watched that FSDP2 gathers before the block runs: its gradient is this rank's own, before it is averaged.
    """

    def __init__(self, name: str, model: nn.Module, block: nn.Module) -> None:
        super().__init__()
        self._name = name
        self._block = block
        holders = Counter(id(p) for module in model.modules() for p in set(module.parameters(recurse=False)))
        wanted = {
            path: p for path, p in block.named_parameters() if holders[id(p)] == 1 and p.requires_grad and p.is_leaf
        }
        self._sharded = {path for path, p in wanted.items() if isinstance(p, DTensor)}
        self._parameters = {path: p for path, p in wanted.items() if path not in self._sharded}
        self._versions = {path: version(p) for path, p in self._parameters.items()}
        self._calls: list[WitnessedCall] = []
        self._gradients: dict[str, Tensor] = {}
        self._handles += [
            block.register_forward_pre_hook(ModelHook(self._enter), with_kwargs=True),
            block.register_forward_hook(ModelHook(self._leave), prepend=True, with_kwargs=True),
        ]
        self._hook_parameters(self._parameters)

    def release(self) -> None:
        """Let go of what was seen."""
        for call in self._calls:
            call.release()
        self._calls.clear()

    def end(self, unprovable: ProofStatus | None = None) -> GradientProof:
        """Run the block alone, and hold its gradients against those of the step, unless it is `unprovable` for others.

        To be called after `undo`.
        """
        try:
            status = self._unprovable() if unprovable is None else unprovable
            return GradientProof(self._name, status) if status is not None else self._proof()
        finally:
            self.release()

    def _proof(self) -> GradientProof:
        calls = [call for call in self._calls if call.reached]
        expected: dict[str, Tensor] = {}
        try:
            with whole_weights(self._block):
                # the order in which a backward adds up what they give to parameters
                kept = sum([call.run_alone(self._parameters, expected) for call in reversed(calls)])
        except (RuntimeError, CkptSurgeryError, TypeError, ValueError) as error:
            return GradientProof(self._name, ProofStatus.FAILED, detail=error_line(error))
        status, errors, compared = self._judged(calls, *self._by_name(calls, expected))
        return GradientProof(self._name, status, errors, compared, kept, sum(call.given_bytes for call in calls))

    def _judged(
        self, calls: Sequence[WitnessedCall], expected: Mapping[str, Tensor], of_step: Mapping[str, Tensor]
    ) -> tuple[ProofStatus, dict[str, float], int]:
        """Hold gradients of the step against those expected: status, errors by name, and the number compared."""
        errors = {name: _error(expected[name], of_step[name]) for name in expected if name in of_step}
        if None in errors.values():  # half precision overflows inside a block, too
            return ProofStatus.NOT_FINITE, {}, 0
        missing = [name for name, gradient in expected.items() if name not in of_step and bool(gradient.any())]
        passed_by = self._passed_by(missing, calls)
        lost = {name: 1.0 for name in missing if name not in passed_by}
        wrong = {name: error for name, error in errors.items() if error} | lost
        compared = len(errors) + len(lost)
        if wrong:  # where gradients have reached it in ways that are not known, they may be right
            untold = any(call.handed_on.untold for call in calls)
            return (ProofStatus.HANDS_ON, {}, compared) if untold else (ProofStatus.WRONG, wrong, compared)
        if passed_by:
            return ProofStatus.NOT_ASKED_FOR, {}, compared
        hides = any(call.hides_gradients for call in calls)
        return ProofStatus.REENTRANT if hides else ProofStatus.PROVED, {}, compared

    def _unprovable(self) -> ProofStatus | None:
        """Return why the block need not be run alone; None where it is to be."""
        calls = self._calls
        if not calls:
            return ProofStatus.NOT_CALLED
        if len(calls) > 1 and not all(call.graph.begun for call in calls):
            return ProofStatus.SEVERAL_CALLS
        reached = [gradient for call in calls for gradient in call.reached]
        if not reached:
            return ProofStatus.NOT_REACHED
        if any(version(self._parameters[name]) != before for name, before in self._versions.items()):
            return ProofStatus.WEIGHTS_CHANGED
        if any(map(_has_hooks, self._parameters.values())):
            return ProofStatus.HOOKED
        return None if all(map(_is_finite, reached)) else ProofStatus.NOT_FINITE

    def _by_name(
        self, calls: Sequence[WitnessedCall], expected: dict[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the gradients of the block alone, with those of its arguments, and those of the step.

        Of a call that hides gradients those of its arguments are left out: what it adds to them cannot be seen.
        """
        of_step = dict(self._gradients)
        if len(calls) > 1 and (precision := calls[0].autocast[1]) is not None:  # autocast casts a weight once for all
            expected, of_step = ({n: g.to(precision) for n, g in each.items()} for each in (expected, of_step))
        for suffix, call in _numbered(calls):
            if not call.hides_gradients:
                expected |= {name + suffix: gradient for name, gradient in call.alone.items()}
                of_step |= {name + suffix: gradient for name, gradient in call.graph.gradients.items()}
        return expected, of_step

    def _passed_by(self, missing: Sequence[str], calls: Sequence[WitnessedCall]) -> set[str]:
        """Return which of the missing gradients this backward was not asked for."""
        if not missing:
            return set()
        nodes = {name: get_gradient_edge(p).node for name, p in self._parameters.items() if name in missing}
        for suffix, call in _numbered(calls):
            nodes |= {name + suffix: node for name, node in call.graph.nodes.items() if name + suffix in missing}
        return not_asked_for(nodes, [node for call in calls for node in call.graph.made])

    def _hook_parameters(self, parameters: Mapping[str, nn.Parameter]) -> None:
        for name, parameter in parameters.items():
            add = ModelHook(partial(add_gradient, self._gradients, name))
            self._handles.append(parameter.register_hook(add))  # type: ignore[no-untyped-call]

    def _enter(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.phase is WatchedPhase.FORWARD:
            if not self._calls:
                self._take_gathered()
            self._calls.append(WitnessedCall(self._name, self._block, args, kwargs))
        if (call := self._running()) is not None and not call.graph.begun and torch.is_grad_enabled():
            call.hook(args, kwargs, in_backward=self.phase is WatchedPhase.BACKWARD)

    def _running(self) -> WitnessedCall | None:
        """Return the call that runs, if one of the step does. Of several, nothing says which one is recomputed."""
        if self.phase is WatchedPhase.ASIDE or (self.phase is WatchedPhase.BACKWARD and len(self._calls) > 1):
            return None
        return self._calls[-1] if self._calls else None

    def _take_gathered(self) -> None:
        """Watch the whole parameters that FSDP2 has gathered for this call: it uses the same ones in the recompute."""
        named = self._block.named_parameters() if self._sharded else ()
        gathered = {name: p for name, p in named if name in self._sharded and not isinstance(p, DTensor)}
        self._hook_parameters(gathered)
        self._parameters |= gathered

    def _leave(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Return what to hand on in place of what the block returns.

        This hook is the first: what later ones keep, such as hidden states, has to come from that, too.
        """
        call = self._running()
        if call is None:
            return None
        return call.leave(args, kwargs, output, in_backward=self.phase is WatchedPhase.BACKWARD)


def _numbered(calls: Sequence[WitnessedCall]) -> Iterator[tuple[str, WitnessedCall]]:
    """Iterate over calls, each with what names get that belong to it: nothing where there is one alone."""
    for number, call in enumerate(calls, 1):
        yield f" in call {number}" if len(calls) > 1 else "", call


def _error(expected: Tensor, of_step: Tensor) -> float | None:
    """Return the relative error of a gradient; None where it is inf or nan in the block alone, too."""
    finite = _is_finite(expected), _is_finite(of_step)
    if not any(finite):
        return None
    return relative_error(expected, of_step) if all(finite) else 1.0


def _has_hooks(parameter: nn.Parameter) -> bool:
    """Tell whether somebody else has hooks on a parameter: one that changes gradients would do so again."""
    return any(not isinstance(hook, ModelHook) for hook in (parameter._backward_hooks or {}).values())


def _is_finite(gradient: Tensor) -> bool:
    return bool(gradient.isfinite().all())
