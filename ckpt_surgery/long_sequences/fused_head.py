"""The heads of a model whose loss is fused, and when: in a training step that was given labels.

What such a head returns is in `lazy_logits`. Which heads can be fused, and why others cannot, is decided here.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parameter import Parameter
from torch.utils.hooks import RemovableHandle

from ckpt_surgery.errors import SurgeryWarning
from ckpt_surgery.long_sequences.lazy_logits import HeadCall, LazyLogits, Noted

_LABELS = ("labels", "shift_labels")
"""The arguments of a model's forward that mean that it computes its loss."""


class HeadReason(StrEnum):
    """Why the loss of a head is not fused."""

    NO_HEAD = "it has no output embeddings"
    NOT_LINEAR = "its head is no nn.Linear"
    ADAPTED = "its head has an adapter, whose own logits would be made: leave lm_head out of target_modules"
    REPLACED = "another library has replaced the forward of its head"


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """The head of one model inside the one given: fused if `reason` is None. `owner` is the model's class."""

    name: str
    owner: str
    module: nn.Module | None
    reason: HeadReason | None


@dataclass(slots=True, eq=False)
class LossState:
    """What the losses of a model's heads have come to: how many were fused, and for which functions logits were made.

    `given` counts the forwards with labels that are running.
    """

    model: str
    given: int = 0
    fused: int = 0
    made: dict[str, int] = field(default_factory=dict)

    def note(self, function: str | None) -> None:
        """A loss was fused, or logits were made for this function; the first time of that is a SurgeryWarning."""
        if function is None:
            self.fused += 1
            return
        if function not in self.made:
            warnings.warn(
                f"{self.model} makes its logits for {function}, which a fused loss cannot follow: this loss is "
                "computed as without long_context",
                SurgeryWarning,
                stacklevel=2,
            )
        self.made[function] = self.made.get(function, 0) + 1


class FusedHead:
    """The `forward` of a linear head, as an attribute of the head itself: what was there, and lazy logits in training.

    It lies on the head, and is copied and pickled with it.
    """

    def __init__(self, module: nn.Linear, state: LossState) -> None:
        self.module = module
        self.state = state
        self.retired = False

    @property
    def __wrapped__(self) -> Callable[[Tensor], Tensor]:
        return partial(nn.Linear.forward, self.module)

    @property
    def __self__(self) -> nn.Module:
        return self.module

    def __call__(self, input: Tensor) -> Tensor:
        """Logits for hidden states, (..., hidden size); lazy while a forward with labels trains."""
        if self.retired or not self._fuses(input):
            return nn.Linear.forward(self.module, input)
        kind = self.module.weight.device.type
        autocast = None
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
            autocast = torch.get_autocast_dtype(kind)
        call = HeadCall(input, self.module.weight, self.module.bias, autocast, self.state.note)
        dtype = input.dtype if autocast is None or input.dtype == torch.float64 else autocast
        return LazyLogits.of(Noted(call, (), input, self.module.bias, dtype))

    def _fuses(self, hidden: Tensor) -> bool:
        """Whether this call belongs to a training step with labels, and everything is at hand and plain."""
        if not self.state.given or not self.module.training or not torch.is_grad_enabled():
            return False
        if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
            return False
        weight, bias = self.module.weight, self.module.bias
        plain = type(hidden) is Tensor and {type(weight), type(bias)} <= {Parameter, type(None)}
        if not plain or weight.is_meta or hidden.device != weight.device or not hidden.is_floating_point():
            return False
        return not _sharded(self.module)


class _LabelsGiven:
    """Runs before the forward of a model: counts it while it has labels."""

    def __init__(self, model: nn.Module, state: LossState) -> None:
        self.state = state
        self.names = list(inspect.signature(model.forward).parameters)

    def __call__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = {**dict(zip(self.names, args, strict=False)), **kwargs}
        if not any(given.get(name) is not None for name in _LABELS):
            return
        vars(model)[_GIVEN] = True
        self.state.given += 1


class _LabelsDone:
    """Runs after that forward, also where it raises."""

    def __init__(self, state: LossState) -> None:
        self.state = state

    def __call__(self, model: nn.Module, *_: Any) -> None:
        if vars(model).pop(_GIVEN, False):
            self.state.given -= 1


_GIVEN = "_ckpt_surgery_labels"
"""The attribute of a model while its forward runs with labels."""


def heads_of(model: nn.Module) -> list[Head]:
    """The heads of the models of transformers inside `model`, each once, and why some are not fused."""
    heads: dict[Any, Head] = {}
    owners = list(_owners(model))
    for name, owner in owners:
        head = owner.get_output_embeddings()  # type: ignore[operator]
        if head is None:
            continue
        for part in _trained_copies(head):
            heads.setdefault(part, Head(name, type(owner).__name__, part, _reason(part)))
    if not heads:
        name = next((type(owner).__name__ for _, owner in owners), type(model).__name__)
        return [Head("", name, None, HeadReason.NO_HEAD)]
    return list(heads.values())


def fuse(model: nn.Module, heads: Iterable[Head], state: LossState) -> tuple[list[FusedHead], list[RemovableHandle]]:
    """Give these heads forwards that return lazy logits, and the models around them the hooks that tell when."""
    forwards: list[FusedHead] = []
    for head in heads:
        if isinstance(head.module, nn.Linear) and head.reason is None:
            forward = FusedHead(head.module, state)
            vars(head.module)["forward"] = forward
            forwards.append(forward)
    fused = {forward.module for forward in forwards}
    hooks: list[RemovableHandle] = []
    for _, owner in _owners(model):
        if not fused.isdisjoint(owner.modules()) and takes_labels(owner):
            hooks.append(owner.register_forward_pre_hook(_LabelsGiven(owner, state), prepend=True, with_kwargs=True))
            hooks.append(owner.register_forward_hook(_LabelsDone(state), always_call=True))
    return forwards, hooks


def begin_within(model: nn.Module, state: LossState) -> None:
    """The forward of `model` has begun before its hooks were there: it counts as one with labels."""
    if takes_labels(model) and any(isinstance(hook, _LabelsDone) for hook in model._forward_hooks.values()):
        vars(model)[_GIVEN] = True
        state.given += 1


def release(forwards: Iterable[FusedHead]) -> None:
    """Give the heads back the forward of their class. One that another library has put over it since stays."""
    for forward in forwards:
        forward.retired = True
        attributes = vars(forward.module)
        if attributes.get("forward") is forward:
            del attributes["forward"]


def takes_labels(model: nn.Module) -> bool:
    """Whether a model computes its loss by itself."""
    return not set(_LABELS).isdisjoint(inspect.signature(model.forward).parameters)


def _owners(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, module in model.named_modules():
        if hasattr(type(module), "get_output_embeddings") and hasattr(type(module), "base_model_prefix"):
            yield name, module


def _trained_copies(head: nn.Module) -> list[nn.Module]:
    """The head, or the copies of it that PEFT trains in its place (`modules_to_save`)."""
    copies = getattr(head, "modules_to_save", None)
    return list(copies.values()) if isinstance(copies, nn.ModuleDict) and len(copies) else [head]


def _reason(head: nn.Module) -> HeadReason | None:
    if hasattr(head, "base_layer"):
        return HeadReason.ADAPTED
    if not isinstance(head, nn.Linear) or type(head).forward is not nn.Linear.forward:
        return HeadReason.NOT_LINEAR
    if "forward" in vars(head):
        return HeadReason.REPLACED
    return None


def _sharded(head: nn.Module) -> bool:
    """Whether FSDP2 takes the weight away as soon as the head has run."""
    if not dist.is_available():
        return False
    from torch.distributed.fsdp import FSDPModule

    return isinstance(head, FSDPModule)
