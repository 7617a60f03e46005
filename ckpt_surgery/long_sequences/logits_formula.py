"""Record operations on logits that are never made, as a formula, and compute losses from that instead.

A `HeadCall` is one call of a head; a `LogitsFormula` has what the model has done to its logits since. `lazy_logits`
says which operations of torch its methods stand for. What becomes of the losses is noted on a `LossState`.
"""

from __future__ import annotations

import inspect
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ckpt_surgery.errors import SurgeryError, SurgeryWarning
from ckpt_surgery.long_sequences.fused_loss import TokenStatistics, fused_linear_cross_entropy, token_statistics
from ckpt_surgery.runtime.tools.tensors import versions
from ckpt_surgery.torch_names import LinearCrossEntropyOptions

_WIDER = {torch.float32, torch.float64}


class FusedBy(StrEnum):
    """The function that computed a loss without logits."""

    OURS = "fused_linear_cross_entropy"
    TORCH = "torch.nn.functional.linear_cross_entropy"


@dataclass(slots=True, eq=False)
class LossState:
    """The results of the losses of a model's heads: how many were fused, and which functions needed logits.

    `running` holds the forwards with labels that are running: the thread of each, and the model.
    """

    model: str
    running: list[tuple[int, int]] = field(default_factory=list)
    fused: Counter[FusedBy] = field(default_factory=Counter)
    made: Counter[str] = field(default_factory=Counter)
    replaced_heads: bool = False

    @property
    def has_labels(self) -> bool:
        """Whether a forward with labels is running in this thread."""
        thread = threading.get_ident()
        return any(running == thread for running, _ in self.running)

    def begin(self, model: nn.Module) -> None:
        """Note that a forward with labels begins."""
        self.running.append((threading.get_ident(), id(model)))

    def end(self, model: nn.Module, *_: Any) -> None:
        """Note, as a hook, that a forward ends, with or without labels, even if it raises."""
        call = (threading.get_ident(), id(model))
        if call in self.running:
            self.running.remove(call)

    def note_made(self, function: str, *, later: bool) -> None:
        """Note that logits were made for a function; warn the first time that it needs them.

        `later` says that a loss of theirs was fused before. Then logits made inside the forward belong to another part
        of the loss, and count; those made after the forward are only looked at, and do not.
        """
        if later and not self.has_labels:
            return
        if function not in self.made:
            what = "this part of the loss" if later else "this loss"
            warnings.warn(
                f"{self.model} makes its logits for {function}, which a fused loss cannot follow: {what} is computed "
                "as before",
                SurgeryWarning,
                stacklevel=2,
            )
        self.made[function] += 1

    def replaced(self, owner: str) -> None:
        """Warn, once, that `owner` has another head than that whose loss was to be fused."""
        if self.replaced_heads:
            return
        self.replaced_heads = True
        warnings.warn(
            f"{owner} has another head than when its loss was fused: its logits are made; undo that, and do it again "
            "after the last change to the model",
            SurgeryWarning,
            stacklevel=2,
        )


@dataclass(slots=True, eq=False)
class HeadCall:
    """One call of a head: its arguments, and what its logits were used for.

    `hidden` is (..., hidden size), `weight` (vocabulary, hidden size), `bias` (vocabulary). `state` is told of
    every fused loss, and once when logits are made.
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    autocast: torch.dtype | None
    state: LossState
    made: bool = False
    fused: bool = False
    _before: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._before = self._versions()

    def _versions(self) -> list[int]:
        return versions([tensor for tensor in (self.hidden, self.weight, self.bias) if tensor is not None])

    def note_fused(self, way: FusedBy) -> None:
        """Note a loss that was computed without logits."""
        self.fused = True
        self.state.fused[way] += 1

    def note_made(self, function: str) -> None:
        """Note that `function` needs the logits themselves."""
        if not self.made:
            self.state.note_made(function, later=self.fused)
        self.made = True

    def logits(self) -> Tensor:
        """Make the logits. Raises SurgeryError if the head or its input has been written to since the call."""
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
        """Return a context with the autocast of the call, which may have ended when a loss is computed."""
        kind = self.weight.device.type
        if not torch.amp.is_autocast_available(kind):
            return nullcontext()
        return torch.autocast(kind, self.autocast, enabled=self.autocast is not None)


@dataclass(slots=True, eq=False)
class LogSoftmax:
    """A log-softmax of the logits; its uses share the `statistics`, computed for `hidden` and `labels`."""

    hidden: Tensor | None = None
    labels: Tensor | None = None
    statistics: TokenStatistics | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class LogitsFormula:
    """The logits after the operations so far: these as `steps`, and the result as a formula, for a loss to compute.

    The formula is `after * tanh(scale * (hidden @ weight.T) + bias)`; if not `capped`, it has no tanh, and `after` is
    1. With `log`, it is `times` the log-softmax of that. `hidden` is that of the call, in the shape that views have
    given it.
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

    def scaled(self, factor: float) -> LogitsFormula | None:
        """Follow a multiplication; None if the formula cannot have it."""
        if self.log is not None:
            return replace(self, times=self.times * factor)
        if self.capped:
            return replace(self, after=self.after * factor) if self.after == 1.0 and factor > 0 else None
        return replace(self, scale=self.scale * factor, bias=None if self.bias is None else self.bias * factor)

    def weighted_loss(self, targets: Tensor, classes: Tensor, ignore_index: int, reduction: str) -> Tensor | None:
        """Compute the cross-entropy with a weight for each class by torch; None if torch would make logits.

        torch computes the gradients in the forward, in the dtype of the hidden states, and holds them until the
        backward. Our own loss needs less memory, but has no class weights.
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
        self.call.note_fused(FusedBy.TORCH)
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
        self.call.note_fused(FusedBy.OURS)
        if reduction == "mean":  # NaN where all labels are ignored, as torch's
            losses = losses / (targets != ignore_index).sum().to(losses.device)
        wide = self.call.autocast is not None and self.dtype != torch.float64
        return losses.to(torch.float32 if wide else self.dtype)

    def statistics(self, labels: Tensor | None = None) -> TokenStatistics:
        """Compute statistics of each token, in the leading shape of `hidden`; without `labels`, losses for label 0."""
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
            self.call.note_fused(FusedBy.OURS)
        return log.statistics

    def _terms(self) -> tuple[Tensor, Tensor | None, float | None]:
        """Return the hidden states, bias and softcap with which the fused loss computes these logits."""
        if not self.capped:
            return _scaled(self.hidden, self.scale), self.bias, None
        bias = None if self.bias is None else self.bias * self.after  # the loss divides by the softcap
        return _scaled(self.hidden, self.scale * self.after), bias, self.after

    # The operations of torch that are followed. Each method has those arguments of its operation that are followed. It
    # returns another formula if the result is still as large as logits, a tensor if it is a loss or a few numbers for
    # each token, and None if the logits have to be made.

    def followed(
        self, by: Callable[..., LogitsFormula | Tensor | None], args: tuple[Any, ...], options: Mapping[str, Any]
    ) -> LogitsFormula | Tensor | None:
        """Return what a method below makes of these arguments of its operation; None if it does not take them."""
        try:
            bound = inspect.signature(by).bind(self, *args, **options)
        except TypeError:  # an argument that is not followed
            return None
        return by(*bound.args, **bound.kwargs)

    def to(self, *args: Any, **options: Any) -> LogitsFormula | None:
        if len(args) > 2 or options.keys() - {"device", "dtype"}:
            return None
        formula = self
        for value in (*args, *options.values()):
            if isinstance(value, torch.dtype):
                if value not in _WIDER | {formula.dtype}:
                    return None
                formula = replace(formula, dtype=value)
            elif not isinstance(value, (str, torch.device)) or torch.device(value) != self.call.weight.device:
                return None
        return formula

    def viewed(self, *sizes: Any) -> LogitsFormula | None:
        """Follow a view or reshape that leaves the last dimension as it is."""
        shape = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
        if not shape or not all(type(size) is int for size in shape):
            return None
        if shape[-1] == -1 and self.hidden.shape[:-1].numel() == torch.Size(shape[:-1]).numel():
            shape = (*shape[:-1], self.vocabulary)
        if shape[-1] != self.vocabulary:
            return None
        return replace(self, hidden=self.hidden.reshape(*shape[:-1], self.hidden.shape[-1]))

    def flattened(self, *args: Any, **options: Any) -> LogitsFormula | None:
        shape = torch.empty((*self.hidden.shape[:-1], self.vocabulary), device="meta").flatten(*args, **options).shape
        return self.viewed(*shape)

    def indexed(self, index: Any) -> LogitsFormula | None:
        """Follow slices, positions and masks of tokens, but nothing that indexes the vocabulary."""
        parts = index if isinstance(index, tuple) else (index,)
        taken = 0
        for part in parts:
            if type(part) is Tensor and not part.is_floating_point():
                taken += part.dim() if part.dtype in (torch.bool, torch.uint8) else 1
            elif isinstance(part, slice) or type(part) is int:
                taken += 1
            elif part is not Ellipsis:
                return None
        dimensions = self.hidden.dim()
        ends = any(part is Ellipsis for part in parts) and parts[-1] is not Ellipsis
        whole = isinstance(parts[-1], slice) and parts[-1] == slice(None)
        if taken > dimensions or ((ends or taken == dimensions) and not whole):
            return None
        return replace(self, hidden=self.hidden[index])

    def multiplied(self, other: Any) -> LogitsFormula | None:
        return self.scaled(float(other)) if type(other) in (int, float) and other != 0 else None

    def divided(self, other: Any) -> LogitsFormula | None:
        return self.scaled(1 / other) if type(other) in (int, float) and other != 0 else None

    def added(self, other: Any) -> LogitsFormula | None:
        """Follow a bias for each entry of the vocabulary that is not a parameter."""
        if self.capped or self.log is not None or type(other) is not Tensor or other.requires_grad:
            return None
        size = self.vocabulary
        if other.shape[-1:] != (size,) or other.numel() != size or other.dim() > self.hidden.dim():
            return None
        other = other.reshape(-1).to(self.call.weight.device, self.call.weight.dtype)
        return replace(self, bias=other if self.bias is None else self.bias + other)

    def tanh(self) -> LogitsFormula | None:
        return None if self.capped or self.log is not None else replace(self, capped=True)

    def log_softmax(self, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> LogitsFormula | None:
        dtype = dtype or self.dtype
        if self.log is not None or not self._is_vocabulary(dim) or type(_stacklevel) is not int:
            return None
        return replace(self, log=LogSoftmax(), dtype=dtype) if dtype in _WIDER | {self.dtype} else None

    def cross_entropy(
        self,
        target: Any,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Tensor | None:
        plain = self.log is None and size_average is None and reduce is None and 0 <= label_smoothing <= 1
        classes = type(target) is Tensor and not target.is_floating_point() and target.dtype != torch.bool
        if not plain or not classes or reduction not in ("mean", "sum", "none"):
            return None
        if self.hidden.dim() != 2 or target.shape != self.hidden.shape[:1]:
            return None
        if weight is None:
            return self.loss(target, ignore_index, reduction, label_smoothing)
        return None if label_smoothing else self.weighted_loss(target, weight, ignore_index, reduction)

    def nll_loss(self, target: Any, weight: Tensor | None = None, *args: Any, **options: Any) -> Tensor | None:
        if self.log is None or self.times != 1.0 or weight is not None:
            return None
        return replace(self, log=None).cross_entropy(target, None, *args, **options)

    def gathered(self, dim: Any, index: Any) -> Tensor | None:
        """Follow taking one entry of a log-softmax for each token."""
        if self.log is None or type(index) is not Tensor or not self._is_vocabulary(dim):
            return None
        if index.shape != (*self.hidden.shape[:-1], 1) or index.dtype != torch.long:
            return None
        losses = self.statistics(index[..., 0]).losses
        return (losses * -self.times).to(self.dtype)[..., None]

    def summed(self, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor | None:
        """Follow the sum of a log-softmax over the vocabulary."""
        if self.log is None or not self._is_vocabulary(dim):
            return None
        _, normalisers, totals = self.statistics()
        total = (totals - self.vocabulary * normalisers) * self.times
        total = total.to(dtype or self.dtype)
        return total[..., None] if keepdim else total

    def averaged(self, *args: Any, **options: Any) -> Tensor | None:
        total = self.followed(LogitsFormula.summed, args, options)
        return total / self.vocabulary if isinstance(total, Tensor) else None

    def logsumexp(self, dim: Any, keepdim: bool = False) -> Tensor | None:
        if self.log is not None or not self._is_vocabulary(dim):
            return None
        normalisers = self.statistics().normalisers.to(self.dtype)
        return normalisers[..., None] if keepdim else normalisers

    def _is_vocabulary(self, dimension: Any) -> bool:
        """Tell whether a dimension is the last one and nothing else."""
        if isinstance(dimension, (tuple, list)) and len(dimension) == 1:
            (dimension,) = dimension
        return type(dimension) is int and dimension in (-1, self.hidden.dim() - 1)


class _Once(torch.autograd.Function):
    """A loss without second derivative: its gradient has no graph, and torch would silently leave that out."""

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
