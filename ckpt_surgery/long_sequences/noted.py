"""What has been done to logits that are not there, in the terms of a loss, and the losses that are made of that.

Which operations can be noted is in `followed`, and the logits themselves in `lazy_logits`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.long_sequences.fused_loss import TokenStatistics, fused_linear_cross_entropy, token_statistics
from ckpt_surgery.long_sequences.head_call import Fused, HeadCall
from ckpt_surgery.torch_names import LinearCrossEntropyOptions

Step = Callable[[Tensor], Tensor]


@dataclass(slots=True, eq=False)
class LogSoftmax:
    """A log-softmax of the logits: what its uses have in common is computed once.

    `hidden` and `labels` are those for which the `statistics` are.
    """

    hidden: Tensor | None = None
    labels: Tensor | None = None
    statistics: TokenStatistics | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Noted:
    """What the model has done to the logits so far: `steps`, and the same in the terms of a loss.

    The logits are `after * tanh(scale * (hidden @ weight.T) + bias)`, without the tanh where not `capped`, and
    `after` is 1 then; with `log`, `times` the log-softmax of that. `hidden` is that of the call, in the shape that
    views have given it.
    """

    call: HeadCall
    steps: tuple[Step, ...]
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
        """After a multiplication; None where it has no place in the loss."""
        if self.log is not None:
            return replace(self, times=self.times * factor)
        if self.capped:
            return replace(self, after=self.after * factor) if self.after == 1.0 and factor > 0 else None
        return replace(self, scale=self.scale * factor, bias=None if self.bias is None else self.bias * factor)

    def weighted_loss(self, targets: Tensor, classes: Tensor, ignore_index: int, reduction: str) -> Tensor | None:
        """The cross-entropy with a weight for each class, (vocabulary), by torch; None where torch would make logits.

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
        once: Tensor = _Once.apply(loss)  # type: ignore[no-untyped-call]
        return once

    def loss(self, targets: Tensor, ignore_index: int, reduction: str, label_smoothing: float = 0.0) -> Tensor:
        """The cross-entropy of the logits, (tokens, vocabulary), against targets, (tokens)."""
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
        if reduction == "mean":  # NaN where all labels are ignored, as torch's
            losses = losses / (targets != ignore_index).sum().to(losses.device)
        wide = self.call.autocast is not None and self.dtype != torch.float64
        return losses.to(torch.float32 if wide else self.dtype)

    def statistics(self, labels: Tensor | None = None) -> TokenStatistics:
        """Those of all tokens, in the leading shape of `hidden`; without `labels` the losses are those of label 0."""
        log = self.log or LogSoftmax()
        if (
            log.hidden is not self.hidden
            or (labels is not None and labels is not log.labels)
            or log.statistics is None
        ):
            hidden, bias, softcap = self._terms()
            shape = hidden.shape[:-1]
            places = torch.zeros(shape, dtype=torch.long, device=hidden.device) if labels is None else labels
            flat = hidden.reshape(-1, hidden.shape[-1])
            with self.call.casting():
                found = token_statistics(flat, self.call.weight, places.reshape(-1), bias, softcap=softcap)
            log.hidden, log.labels = self.hidden, labels
            log.statistics = TokenStatistics(*(each.reshape(shape) for each in found))
            self.call.fused = True
            self.call.notify(Fused.OURS)
        return log.statistics

    def _terms(self) -> tuple[Tensor, Tensor | None, float | None]:
        """Hidden states, bias and softcap of the loss of these logits."""
        factor, bias = self.scale, self.bias
        softcap = self.after if self.capped else None
        if softcap is not None:
            factor *= softcap  # the loss divides by it
            bias = None if bias is None else bias * softcap
        return _scaled(self.hidden, factor), bias, softcap


class _Once(torch.autograd.Function):
    """A loss whose gradient has no graph: torch's own leaves it out of a second derivative, and says nothing."""

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
