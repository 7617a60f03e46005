"""Record operations on logits that are never made, as data, and compute losses from them instead.

A `HeadCall` is one call of a head; `Noted` is what the model has done to its logits since. Which operations can be
noted is in `lazy_logits`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.long_sequences.fused_loss import TokenStatistics, fused_linear_cross_entropy, token_statistics
from ckpt_surgery.runtime.tools.tensors import versions
from ckpt_surgery.torch_names import LinearCrossEntropyOptions


class Fused(StrEnum):
    """The function that computed a loss without logits."""

    OURS = "fused_linear_cross_entropy"
    TORCH = "torch.nn.functional.linear_cross_entropy"


@dataclass(frozen=True, slots=True)
class Made:
    """Logits that were made for this function; `later` tells that a loss of theirs was fused before."""

    function: str
    later: bool = False


@dataclass(slots=True, eq=False)
class HeadCall:
    """One call of a head: its arguments, and the uses of its logits.

    `hidden` is (..., hidden size), `weight` (vocabulary, hidden size), `bias` (vocabulary). `notify` is called for
    every fused loss, and once when logits are made.
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    autocast: torch.dtype | None
    notify: Callable[[Fused | Made], None]
    made: bool = False
    fused: bool = False
    _before: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._before = self._versions()

    def _versions(self) -> list[int]:
        return versions([tensor for tensor in (self.hidden, self.weight, self.bias) if tensor is not None])

    def note_fused(self, way: Fused) -> None:
        """Note a loss that was computed without logits."""
        self.fused = True
        self.notify(way)

    def note_made(self, function: str) -> None:
        """Note that `function` needs the logits themselves."""
        if not self.made:
            self.notify(Made(function, self.fused))
        self.made = True

    def logits(self) -> Tensor:
        """Make the logits. Raises SurgeryError where the head or its input has been written to since the call."""
        if self._versions() != self._before:
            raise SurgeryError(
                "these logits cannot be made any more: the head or its input was written to since the forward, as by "
                "an optimizer's step; use outputs.logits before that"
            )
        return self.product(self.hidden, self.weight, self.bias)

    def product(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Compute logits as the head does, under the autocast of the call."""
        with self.casting():
            return F.linear(hidden, weight, bias)

    def casting(self) -> AbstractContextManager[Any]:
        """Return the autocast of the call: its loss may be computed after that has ended."""
        kind = self.weight.device.type
        if not torch.amp.is_autocast_available(kind):
            return nullcontext()
        return torch.autocast(kind, self.autocast, enabled=self.autocast is not None)


@dataclass(slots=True, eq=False)
class LogSoftmax:
    """A log-softmax of the logits; its uses share the `statistics`, which are those for `hidden` and `labels`."""

    hidden: Tensor | None = None
    labels: Tensor | None = None
    statistics: TokenStatistics | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Noted:
    """The operations recorded on the logits so far: `steps`, and the same in the terms of a loss.

    The logits are `after * tanh(scale * (hidden @ weight.T) + bias)`, without the tanh where not `capped`, and
    `after` is 1 then; with `log`, `times` the log-softmax of that. `hidden` is that of the call, in the shape that
    views have given it.
    """

    call: HeadCall
    steps: tuple[Callable[[Tensor], Tensor], ...]
    hidden: Tensor
    bias: Tensor | None
    dtype: torch.dtype
    scale: float = 1.0
    capped: bool = False
    after: float = 1.0
    log: LogSoftmax | None = None
    times: float = 1.0

    @property
    def vocabulary(self) -> int:
        """The size of the last dimension."""
        return self.call.weight.shape[0]

    def scaled(self, factor: float) -> Noted | None:
        """Note a multiplication; None where it has no place in the loss."""
        if self.log is not None:
            return replace(self, times=self.times * factor)
        if self.capped:
            return replace(self, after=self.after * factor) if self.after == 1.0 and factor > 0 else None
        return replace(self, scale=self.scale * factor, bias=None if self.bias is None else self.bias * factor)

    def weighted_loss(self, targets: Tensor, classes: Tensor, ignore_index: int, reduction: str) -> Tensor | None:
        """Compute the cross-entropy with a weight for each class by torch; None where torch would make logits.

        Torch computes the gradients in the forward, in the dtype of the hidden states, and holds them until the
        backward: ours has no such weights, and needs less memory.
        """
        weight, hidden = self.call.weight, self.hidden
        alike = {hidden.dtype, weight.dtype, classes.dtype, self.dtype} <= {self.dtype} - {torch.bfloat16, torch.half}
        plain = {type(hidden), type(targets), type(classes)} == {Tensor} and targets.dtype == torch.long
        together = {hidden.device, targets.device, classes.device} == {weight.device}
        possible = LinearCrossEntropyOptions is not None and alike and plain and together
        if not possible or self.capped or self.call.autocast is not None:
            return None
        loss: Tensor = F.linear_cross_entropy(
            _scaled(hidden, self.scale),
            weight,
            targets,
            linear_bias=self.bias,
            weight=classes,
            reduction=reduction,
            ignore_index=ignore_index,
            options=LinearCrossEntropyOptions(allow_retain_graph=True),
        )
        self.call.note_fused(Fused.TORCH)
        once: Tensor = _Once.apply(loss)  # type: ignore[no-untyped-call]
        return once

    def loss(self, targets: Tensor, ignore_index: int, reduction: str, label_smoothing: float = 0.0) -> Tensor:
        """Compute the cross-entropy of the logits, (tokens, vocabulary), against targets, (tokens)."""
        hidden, bias, softcap = self._terms()
        with self.call.casting():
            losses = fused_linear_cross_entropy(
                hidden,
                self.call.weight,
                targets,
                bias,
                ignore_index=ignore_index,
                reduction="none" if reduction == "none" else "sum",
                softcap=softcap,
                label_smoothing=label_smoothing,
            )
        self.call.note_fused(Fused.OURS)
        if reduction == "mean":  # NaN where all labels are ignored, as torch's
            losses = losses / (targets != ignore_index).sum().to(losses.device)
        wide = self.call.autocast is not None and self.dtype != torch.float64
        return losses.to(torch.float32 if wide else self.dtype)

    def statistics(self, labels: Tensor | None = None) -> TokenStatistics:
        """Compute those of all tokens, in the leading shape of `hidden`; without `labels`, losses of label 0."""
        log = self.log or LogSoftmax()
        same = log.hidden is self.hidden and (labels is None or labels is log.labels)
        if log.statistics is None or not same:
            hidden, bias, softcap = self._terms()
            shape = hidden.shape[:-1]
            places = torch.zeros(shape, dtype=torch.long, device=hidden.device) if labels is None else labels
            flat = hidden.reshape(-1, hidden.shape[-1])
            with self.call.casting():
                found = token_statistics(flat, self.call.weight, places.reshape(-1), bias, softcap=softcap)
            log.hidden, log.labels = self.hidden, labels
            log.statistics = TokenStatistics(*(each.reshape(shape) for each in found))
            self.call.note_fused(Fused.OURS)
        return log.statistics

    def _terms(self) -> tuple[Tensor, Tensor | None, float | None]:
        """Return hidden states, bias and softcap of the loss of these logits."""
        if not self.capped:
            return _scaled(self.hidden, self.scale), self.bias, None
        bias = None if self.bias is None else self.bias * self.after  # the loss divides by the softcap
        return _scaled(self.hidden, self.scale * self.after), bias, self.after


class _Once(torch.autograd.Function):
    """A loss whose gradient has no graph; torch would silently leave it out of a second derivative."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor) -> Tensor:
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise SurgeryError(
                "torch's linear_cross_entropy, which is taken for weights of classes, has no second derivative: leave "
                "out create_graph=True, or undo the fused loss"
            )
        return gradient


def _scaled(hidden: Tensor, factor: float) -> Tensor:
    return hidden if abs(factor - 1) < 1e-15 else hidden * factor
