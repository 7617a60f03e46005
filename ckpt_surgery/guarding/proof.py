"""The gradients of one block in a step, held against those of the block alone without checkpointing.

The block's inputs and the gradient that reaches its outputs are kept for one step. After the backward it is run once
more on them, plainly, which takes the memory of one block and never that of the model. Where it ran several times, its
calls are run one after the other, and what they give to its parameters is added up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.distributed.tensor import DTensor
from torch.utils.hooks import RemovableHandle

from ckpt_surgery.errors import CkptSurgeryError
from ckpt_surgery.guarding.asked_for import not_asked_for
from ckpt_surgery.guarding.handed_on import CutTensors
from ckpt_surgery.guarding.witnessed_call import CallAlone, WitnessedCall, add_gradient
from ckpt_surgery.guarding.zero3 import whole_weights
from ckpt_surgery.measure.compare import relative_error
from ckpt_surgery.runtime.tools.model_hook import ModelHook
from ckpt_surgery.runtime.tools.tensors import version
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
        self._calls: list[WitnessedCall] = []
        self._in_backward = False
        self._aside = False
        self._gradients: dict[str, Tensor] = {}
        self._handles: list[RemovableHandle] = [
            block.register_forward_pre_hook(ModelHook(self._enter), with_kwargs=True),
            block.register_forward_hook(ModelHook(self._leave), prepend=True, with_kwargs=True),
        ]
        self._cut = CutTensors(cutting, lambda: not (self._aside or self._in_backward))
        self._handles += self._cut.handles
        self._hook_parameters(self._parameters)

    def _hook_parameters(self, parameters: Mapping[str, nn.Parameter]) -> None:
        for name, parameter in parameters.items():
            add = ModelHook(partial(add_gradient, self._gradients, name))
            self._handles.append(parameter.register_hook(add))  # type: ignore[no-untyped-call]

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

    def give_up(self) -> None:
        """Take all hooks off, and let go of what was seen."""
        self.remove()
        calls, self._calls = self._calls, []
        for call in calls:
            call.release()

    def leave_out(self) -> GradientProof:
        """The proof where nothing can be said of the step: the model ran a second time in the backward."""
        self.give_up()
        return GradientProof(self._name, ProofStatus.SEVERAL_CALLS)

    def end(self) -> GradientProof:
        """Run the block alone, and hold its gradients against those of the step."""
        self.remove()
        calls, self._calls = self._calls, []
        try:
            return self._proof(calls)
        finally:
            for call in calls:
                call.release()

    def _proof(self, calls: list[WitnessedCall]) -> GradientProof:
        proof = partial(GradientProof, self._name)
        if not calls:
            return proof(ProofStatus.NOT_CALLED)
        if len(calls) > 1 and not all(call.hooked for call in calls):
            return proof(ProofStatus.SEVERAL_CALLS)
        reached = [gradient for call in calls for gradient in call.reached]
        if not reached:
            return proof(ProofStatus.NOT_REACHED)
        if any(version(self._parameters[name]) != before for name, before in self._versions.items()):
            return proof(ProofStatus.WEIGHTS_CHANGED)
        if not all(map(_is_finite, reached)):
            return proof(ProofStatus.NOT_FINITE)
        calls = [call for call in calls if call.reached]
        alone: list[CallAlone] = []
        gradients: dict[str, Tensor] = {}
        try:
            with whole_weights(self._block):
                for call in reversed(calls):  # the order in which a backward adds up what they give to parameters
                    alone.append(call.run_alone(self._parameters, self._cut))
                    for name, gradient in alone[-1].parameters.items():
                        gradients[name] = gradients[name] + gradient if name in gradients else gradient
        except (RuntimeError, CkptSurgeryError, TypeError, ValueError) as error:
            return proof(ProofStatus.FAILED, detail=error_line(error))
        alone.reverse()
        of_step = dict(self._gradients)
        if len(calls) > 1 and (precision := calls[0].precision) is not None:  # autocast casts a weight once for all
            gradients, of_step = ({n: g.to(precision) for n, g in each.items()} for each in (gradients, of_step))
        nodes: dict[str, Node] = {}
        for number, (call, each) in enumerate(zip(calls, alone, strict=True), 1):
            of_call = f" in call {number}" if len(calls) > 1 else ""
            gradients |= {name + of_call: gradient for name, gradient in each.arguments.items()}
            of_step |= {name + of_call: gradient for name, gradient in call.gradients.items()}
            nodes |= {name + of_call: node for name, node in call.nodes.items()}
        both = [name for name in gradients if name in of_step]
        finite = {name: (_is_finite(gradients[name]), _is_finite(of_step[name])) for name in both}
        if (False, False) in finite.values():  # half precision overflows inside a block, too
            return proof(ProofStatus.NOT_FINITE)
        errors = {name: relative_error(gradients[name], of_step[name]) if all(finite[name]) else 1.0 for name in both}
        wrong = {name: error for name, error in errors.items() if error}
        lost = {name: 1.0 for name in gradients if name not in of_step and bool(gradients[name].any())}
        nodes |= {name: get_gradient_edge(p).node for name, p in self._parameters.items() if name in lost}
        nodes = {name: node for name, node in nodes.items() if name in lost}
        made = [node for call in calls for node in call.made]
        passed_by = not_asked_for(nodes, made) if lost else set()
        lost = {name: error for name, error in lost.items() if name not in passed_by}
        if passed_by and not (wrong or lost):
            return proof(ProofStatus.NOT_ASKED_FOR)
        if (wrong or lost) and any(call.handed_on.untold for call in calls):  # what reaches it there is unknown
            return proof(ProofStatus.HANDS_ON)
        right = ProofStatus.HANDS_ON_CUT if any(each.hands_on_cut for each in alone) else ProofStatus.PROVED
        status = ProofStatus.WRONG if wrong or lost else right
        kept, given = sum(each.kept for each in alone), sum(call.given_bytes for call in calls)
        cut, uses = (tuple(dict.fromkeys(n for each in alone for n in of(each))) for of in (_cut_of, _uses_of))
        return proof(status, {**wrong, **lost}, len(both) + len(lost), kept, given, cut=cut, uses_cut_of=uses)

    def _enter(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._aside:
            return None
        if not self._in_backward:
            if not self._calls:
                self._take_gathered()
            self._calls.append(WitnessedCall(self._name, self._block, args, kwargs))
        if (call := self._running()) is not None and not call.hooked and torch.is_grad_enabled():
            return args, call.hook(args, kwargs)
        return None

    def _running(self) -> WitnessedCall | None:
        """The call that runs. Of several, nothing says which one is recomputed."""
        if self._in_backward and len(self._calls) > 1:
            return None
        return self._calls[-1] if self._calls else None

    def _take_gathered(self) -> None:
        """Watch the whole parameters that FSDP2 has gathered for this call: it uses the same ones in the recompute."""
        gathered = {
            name: parameter
            for name, parameter in (self._block.named_parameters() if self._sharded else ())
            if name in self._sharded and not isinstance(parameter, DTensor)
        }
        self._hook_parameters(gathered)
        self._parameters |= gathered

    def _leave(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """What to hand on in place of what the block returns.

        This hook is the first: what later ones keep, such as hidden states, has to come from that, too.
        """
        call = self._running()
        if self._aside or call is None:
            return None
        handed_on, handles = call.leave(args, kwargs, output, in_backward=self._in_backward)
        self._handles += handles
        return handed_on


def _cut_of(alone: CallAlone) -> Sequence[str]:
    return alone.cut


def _uses_of(alone: CallAlone) -> Sequence[str]:
    return alone.uses_cut_of


def _is_finite(gradient: Tensor) -> bool:
    return bool(gradient.isfinite().all())
