"""`fuse_loss`: a model whose training loss never makes its logits, because its head returns `lazy_logits`.

This decides which heads do, and in which calls, and counts the losses. The loss itself is in `fused_loss`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import Parameter
from torch.utils.hooks import RemovableHandle

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.long_sequences.lazy_logits import LazyLogits
from ckpt_surgery.long_sequences.logits_formula import HeadCall, LogitsFormula, LossState
from ckpt_surgery.runtime.tools.classes import is_sharded
from ckpt_surgery.torch_names import FakeTensor, innermost_transform
from ckpt_surgery.undo import Undoable

FUSED_LOSS = "_ckpt_surgery_fused_loss"
"""The attribute of a model that holds what `fuse_loss` did to it."""
_PLAIN = frozenset({Tensor, Parameter, FakeTensor, type(None)})
"""The types of hidden states, weight and bias with which a loss can be fused."""
_LABELS = ("labels", "shift_labels")
"""The arguments of a model's forward that mean that it computes its loss."""
_ITEMS = "num_items_in_batch"
"""What transformers' Trainer passes in a training step, even if it keeps the labels for its own loss."""


class HeadReason(StrEnum):
    """Why the loss of a head is not fused."""

    NO_HEAD = "it has no output embeddings"
    NOT_LINEAR = "its head is not an nn.Linear"
    ADAPTED = "its head has an adapter, whose own logits would be made: leave lm_head out of target_modules"
    SHARDED = "FSDP2 shards its head by itself, and takes its weight away before the loss: leave it to the root"
    REPLACED = "the forward of its head is not that of its class: take back what replaced it first"

    @classmethod
    def of(cls, head: nn.Module) -> HeadReason | None:
        """Return the reason for a head; None if there is none."""
        if hasattr(head, "base_layer"):
            return cls.ADAPTED
        if is_sharded(head):
            return cls.SHARDED
        if not isinstance(head, nn.Linear) or type(head).forward is not nn.Linear.forward:
            return cls.NOT_LINEAR
        forward = vars(head).get("forward")
        if forward is not None and not getattr(forward, "retired", False):  # an undone one does nothing
            return cls.REPLACED
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """The head of one model inside the one given: fused if `reason` is None. `owner` is the model's class."""

    name: str
    owner: str
    module: nn.Module | None
    reason: HeadReason | None

    @property
    def reason_now(self) -> HeadReason | None:
        """The reason, also if FSDP2 has sharded the head since it was found."""
        sharded = self.module is not None and is_sharded(self.module)
        return self.reason or (HeadReason.SHARDED if sharded else None)

    @classmethod
    def all_in(cls, model: nn.Module) -> list[Head]:
        """Find the heads of the models of transformers inside `model`, each once, and why some are not fused."""
        heads: dict[nn.Module, Head] = {}
        owners = list(_owners(model))
        for name, owner in owners:
            for head in _heads_now(owner):
                heads.setdefault(head, cls(name, type(owner).__name__, head, HeadReason.of(head)))
        outermost = owners[0][1] if owners else model
        return list(heads.values()) or [cls("", type(outermost).__name__, None, HeadReason.NO_HEAD)]


def fuse_loss(model: nn.Module) -> FusedLoss:
    """Let `model` compute its own training loss from hidden states, a chunk of logits at a time.

    `model` is a model of transformers with a linear language modelling head, or holds one. Its forward, in training
    mode, with gradients and `labels`, runs as its own code says, and the head returns a stand-in for its logits, a
    `torch.Tensor` of their shape, dtype and device without memory. Casts, views, slices and masks of tokens, scale,
    softcap and a bias of the vocabulary are followed; `F.cross_entropy` of the stand-in, in the model, in its
    `loss_function` or in yours, becomes `fused_linear_cross_entropy`; with class weights, in single precision or more,
    torch's own `linear_cross_entropy` (2.13 and later). Any other operation on it makes the logits, and goes on as
    without this call. So `outputs.logits` costs memory when it is used, and not before. A loss for which logits had to
    be made gives a SurgeryWarning, once for each reason.

    `num_items_in_batch` alone will do for labels: transformers' Trainer gives it if it smooths labels or has a
    `compute_loss_func`. Log-softmax, logsumexp, and what label smoothing takes of them are followed as well.

    Without labels, in evaluation mode, without gradients, while torch compiles, and if FSDP2 shards the head by
    itself, heads do what they did. Loss and gradients are those of the model up to rounding: the products are in the
    dtype of the head, the loss in float32 at least.

    Returns:
        The change: `undo()` it, or use it in a `with`. A second call returns the same. A copy of the model is fused as
        well, by itself: `fuse_loss(copy)` returns its own change.

    Raises:
        SurgeryError: the loss of no head can be fused.
    """
    given: object = model
    if not isinstance(given, nn.Module):
        raise SurgeryError(f"the model is of type {type(model).__name__}: give a torch.nn.Module")
    before = vars(model).get(FUSED_LOSS)
    if isinstance(before, FusedLoss):
        return before
    loss = FusedLoss(model)
    if all(head.reason is not None for head in loss.heads):
        reasons = "; ".join(dict.fromkeys(f"{head.owner}: {head.reason}" for head in loss.heads))
        raise SurgeryError(f"the loss of {type(model).__name__} cannot be fused: {reasons}")
    return loss


class FusedLoss(Undoable):
    """A model with a fused loss, until `undo`. Made by `fuse_loss`; also a context manager.

    `heads` are those found, with the reasons of those left alone.
    """

    def __init__(self, model: nn.Module, state: LossState | None = None) -> None:
        self.heads = tuple(Head.all_in(model))
        self.state = LossState(type(model).__name__) if state is None else state
        self._model = model
        self._forwards = [
            FusedHead(head.module, self.state)
            for head in self.heads
            if isinstance(head.module, nn.Linear) and head.reason is None
        ]
        for forward in self._forwards:
            vars(forward.module)["forward"] = forward
        fused = {forward.module for forward in self._forwards}
        self._hooks: list[RemovableHandle] = []
        for _, owner in _owners(model):
            takes_labels = not set(_LABELS).isdisjoint(inspect.signature(owner.forward).parameters)
            if takes_labels and not fused.isdisjoint(owner.modules()):
                given = _LabelsHook(owner, self.state)
                self._hooks += [
                    owner.register_forward_pre_hook(given, prepend=True, with_kwargs=True),
                    owner.register_forward_hook(self.state.end, always_call=True),
                ]
        if self._forwards:
            vars(model)[FUSED_LOSS] = self

    def __str__(self) -> str:
        lines = [
            f"loss of {head.owner}: {'fused' if head.reason_now is None else f'not fused: {head.reason_now}'}"
            for head in self.heads
        ]
        lines += [f"computed by {name}: {count} x" for name, count in self.state.fused.items()]
        lines += [f"logits were made for {name}: {count} x" for name, count in self.made_logits.items()]
        return "\n".join(lines) + ("\nundone" if self._undone else "")

    @property
    def fused_losses(self) -> int:
        """How many losses were computed without logits so far."""
        return self.state.fused.total()

    @property
    def made_logits(self) -> dict[str, int]:
        """The functions for which logits were made before a loss, and how often."""
        return dict(self.state.made)

    def begin_within(self, model: nn.Module) -> None:
        """Count the running forward of `model`, which began before the hooks were there, as one with labels."""
        if self.state.end in model._forward_hooks.values():
            self.state.begin(model)

    def check(self) -> None:
        """Raise SurgeryError unless there was a loss, and every one so far was computed without logits."""
        if self.made_logits:
            names = ", ".join(self.made_logits)
            raise SurgeryError(f"{self.state.model} makes its logits for {names}, which a fused loss cannot follow")
        if not self.fused_losses:
            raise SurgeryError(f"{self.state.model} computed no loss from the logits of its head")

    def undo(self) -> None:
        """Give the heads back the forward of their class. A forward that was put over ours since stays.

        Raises SurgeryError if that was done before.
        """
        if self._undone:
            raise SurgeryError("the fused loss was undone before: call fuse_loss again for another one")
        for hook in self._hooks:
            hook.remove()
        for forward in self._forwards:
            forward.retired = True
            attributes = vars(forward.module)
            if attributes.get("forward") is forward:
                del attributes["forward"]
        if vars(self._model).get(FUSED_LOSS) is self:
            del vars(self._model)[FUSED_LOSS]
        self._undone = True


class FusedHead:
    """The `forward` of a linear head, set on the head: the original, or lazy logits in training.

    It is copied and pickled with the head.
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
        """Return logits for hidden states, (..., hidden size): lazy ones in a training forward with labels."""
        if self.retired or not self._fuses(input):
            return nn.Linear.forward(self.module, input)
        kind = self.module.weight.device.type
        autocast = None
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
            autocast = torch.get_autocast_dtype(kind)
        call = HeadCall(input, self.module.weight, self.module.bias, autocast, self.state)
        dtype = input.dtype if autocast is None or input.dtype == torch.float64 else autocast
        return LazyLogits.of(LogitsFormula(call, (), input, self.module.bias, dtype))

    def _fuses(self, hidden: Tensor) -> bool:
        """Tell whether this call belongs to a training step with labels, and all its tensors can be fused."""
        if not self.state.has_labels or not self.module.training or not torch.is_grad_enabled():
            return False
        if torch.compiler.is_compiling() or innermost_transform() is not None:
            return False
        weight, bias = self.module.weight, self.module.bias
        if not {type(hidden), type(weight), type(bias)} <= _PLAIN or weight.is_meta:
            return False
        if hidden.device != weight.device or not hidden.is_floating_point():
            return False
        return not is_sharded(self.module)


class _LabelsHook:
    """A forward pre-hook that notes a forward of a model, if that is given labels."""

    def __init__(self, model: nn.Module, state: LossState) -> None:
        self.state = state
        self.names = list(inspect.signature(model.forward).parameters)
        self.heads = _heads_now(model)

    def __call__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = {**dict(zip(self.names, args, strict=False)), **kwargs}
        if not any(given.get(name) is not None for name in (*_LABELS, _ITEMS)):
            return
        self.state.begin(model)
        if model.training and torch.is_grad_enabled() and _heads_now(model) != self.heads:
            self.state.replaced(type(model).__name__)


def _owners(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the models of transformers inside `model`, itself among them, that can have a head, with their names."""
    for name, module in model.named_modules():
        if hasattr(type(module), "get_output_embeddings") and hasattr(type(module), "base_model_prefix"):
            yield name, module


def _heads_now(owner: nn.Module) -> list[nn.Module]:
    """Return the head of a model, or the copies of it that PEFT trains in its place (`modules_to_save`)."""
    head = owner.get_output_embeddings()  # type: ignore[operator]
    copies = getattr(head, "modules_to_save", None)
    if isinstance(copies, nn.ModuleDict) and len(copies):
        return list(copies.values())
    return [] if head is None else [head]
