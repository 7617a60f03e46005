"""Cross-entropy of a linear head without materialising its logits, on whatever devices head and hidden states are.

Shifting labels, scaling by the number of items and calling it from a model are up to the caller.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ckpt_surgery.errors import OptionError, OptionTypeError
from ckpt_surgery.torch_names import is_autocast_available

Reduction = Literal["mean", "sum", "none"]

_LIGER_DEVICES = frozenset({"cuda", "xpu"})
_FEWEST_ROWS, _MOST_ROWS = 256, 1024
_NOTHING_IGNORED = torch.iinfo(torch.int64).min  # no label
_NO_MORE = (None,) * 6
"""In place of gradients of the arguments that have none."""


def fused_linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    bias: Tensor | None = None,
    *,
    chunk_size: int | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    softcap: float | None = None,
    label_smoothing: float = 0.0,
    prefer: Literal["liger"] | None = None,
) -> Tensor:
    """Compute the cross-entropy of `hidden @ weight.T + bias` and `labels`, for `chunk_size` tokens at a time.

    Nothing is shifted here: where position i predicts token i + 1, call it with `hidden[:, :-1]` and `labels[:, 1:]`.

    Each tensor may be on another device. The work is done on that of `weight`, one chunk of hidden states at a
    time goes there, and every gradient comes back on the device and in the dtype of its input. Products are in the
    dtype of the inputs, or in autocast's; what follows them, the loss and the sums for the gradients of `weight` and
    `bias`, in float32, or in float64 for float64. The backward computes the logits once more: four products in a step
    in place of three, no gradient is held between forward and backward, and a gradient scaler has scaled before
    anything is rounded to half precision. At most two chunks of logits are alive at a time.

    Under DistributedDataParallel and FSDP2 call it in the forward of the wrapped module, or with `call_through_ddp`,
    not on what the wrapper returned: `weight` would be used behind its back. A backward with `create_graph=True` makes
    the logits, whole and with their graph: the second derivative is that of F.cross_entropy, and so is its memory.

    Args:
        hidden: hidden states, (..., hidden size); of one floating dtype with `weight` and `bias` outside autocast.
        weight: the weight of the head, (vocabulary, hidden size), and whole.
        labels: class indices, (...), of any integer dtype. One outside the vocabulary raises RuntimeError on CPU and
            fails an assertion on a GPU, as for F.cross_entropy: to look costs a synchronisation.
        bias: the bias of the head, (vocabulary).
        chunk_size: how many tokens have logits at a time, at 4 bytes for each of their entries (8 in float64). By
            default a chunk of logits has about as many elements as `hidden`, and 256 to 1024 rows.
        ignore_index: the label that does not count.
        reduction: "mean" over the labels that count, "sum", or "none" for losses of the shape of `labels`. Divide the
            sum for another divisor. If all labels are ignored, the mean is 0, with gradients of 0.
        softcap: makes the logits `softcap * tanh(logits / softcap)`.
        label_smoothing: as in F.cross_entropy, the share of a label that is spread over the vocabulary, 0 to 1.
        prefer: "liger" hands the work to the kernel of Liger 0.6.2 or later if it is installed and can do it: all
            on one GPU, float32 or bfloat16, reduced, without label smoothing, and a gradient for `hidden` wherever the
            head gets one. It chooses its own chunks.

    Returns:
        The loss, in float32 at least, on the device of `hidden`.

    Raises:
        OptionError: (a ValueError) shapes do not fit, or an option is not one of those above.
        OptionTypeError: (also a TypeError) something is not a tensor, or dtypes do not fit.
    """
    _check_shapes(hidden, weight, labels, bias)
    if chunk_size is not None and chunk_size < 1:
        raise OptionError(f"chunk_size is a number of tokens of at least 1, not {chunk_size}")
    if reduction not in ("mean", "sum", "none"):
        raise OptionError(f'reduction is "mean", "sum" or "none", not {reduction!r}')
    if softcap is not None and not 0 < softcap < math.inf:
        raise OptionError(f"softcap has to be above 0 and finite, not {softcap}; None is for logits without one")
    if prefer not in (None, "liger"):
        raise OptionError(f'prefer is "liger" or None, not {prefer!r}')
    if not 0 <= label_smoothing <= 1:
        raise OptionError(f"label_smoothing is a share from 0 to 1, not {label_smoothing}")
    dtype = _product_dtype(hidden, weight, labels, bias)
    flat, targets = hidden.reshape(-1, hidden.shape[-1]), labels.reshape(-1).long()
    if prefer == "liger" and reduction != "none" and not label_smoothing:
        liger = _liger(flat, weight, targets, bias, dtype)
        if liger is not None:
            options = {"ignore_index": ignore_index, "reduction": reduction, "softcap": softcap}
            return liger(flat, weight, targets, bias=bias, accum_dtype=torch.float32, **options)
    rows = chunk_size or min(max(hidden.numel() // weight.shape[0], _FEWEST_ROWS), _MOST_ROWS)
    losses, normalisers, totals = TokenStatistics.of(
        flat, weight, bias, targets, rows, ignore_index, softcap, dtype, label_smoothing > 0
    )
    if label_smoothing:
        spread = torch.where(targets.to(losses.device) == ignore_index, 0, normalisers - totals / len(weight))
        losses = (1 - label_smoothing) * losses + label_smoothing * spread
    if reduction == "none":
        return losses.reshape(labels.shape)
    if reduction == "sum":
        return losses.sum()
    return losses.sum() / (targets != ignore_index).sum().clamp(min=1).to(losses.device)


class TokenStatistics(NamedTuple):
    """Statistics of each token, (tokens,), in float32 at least: loss, and logsumexp and sum of its logits.

    The loss is 0 where the label is ignored.
    """

    losses: Tensor
    normalisers: Tensor
    totals: Tensor

    @classmethod
    def of(cls, *arguments: Any) -> TokenStatistics:
        """Compute the statistics; `arguments` are those of `_TokenLosses`."""
        return cls(*_TokenLosses.apply(*arguments))  # type: ignore[no-untyped-call]


def token_statistics(
    hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None = None, *, softcap: float | None = None
) -> TokenStatistics:
    """Compute, without logits, the statistics that other losses are made of, each with its gradient.

    `hidden` is (tokens, hidden size), `labels` (tokens): none is ignored. The rest is as in
    `fused_linear_cross_entropy`.
    """
    dtype = _product_dtype(hidden, weight, labels, bias)
    rows = max(hidden.numel() // weight.shape[0], _FEWEST_ROWS)
    return TokenStatistics.of(hidden, weight, bias, labels.long(), rows, _NOTHING_IGNORED, softcap, dtype, True)


class _TokenLosses(torch.autograd.Function):
    """The statistics of every token, on the device of `hidden`; logsumexp and sum are None without `whole`.

    `hidden` is (tokens, hidden size). Reductions are left to autograd, which hands the backward a gradient per token.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        rows: int,
        ignore_index: int,
        softcap: float | None,
        dtype: torch.dtype,
        whole: bool,
    ) -> tuple[Tensor | None, ...]:
        head, shift = weight.to(dtype), None if bias is None else bias.to(weight.device, dtype)
        wide = _at_least_float32(dtype)
        losses = torch.zeros(len(hidden), dtype=wide, device=weight.device)
        normalisers = torch.zeros_like(losses)
        totals = torch.zeros_like(losses) if whole else None
        for start in range(0, len(hidden), rows):
            chunk = slice(start, start + rows)
            states, targets = hidden[chunk].to(weight.device, dtype), labels[chunk].to(weight.device)
            logits = _logits(states, head, shift, softcap)
            chosen, normalisers[chunk] = _chosen(logits, targets, ignore_index)
            losses[chunk] = torch.where(targets == ignore_index, 0, normalisers[chunk] - chosen)
            if totals is not None:
                totals[chunk] = logits.sum(-1)
            del logits  # otherwise it would live until the next chunk has made its own
        ctx.save_for_backward(hidden, weight, bias, labels, normalisers)
        ctx.options = (rows, ignore_index, softcap, dtype)
        ctx.set_materialize_grads(False)
        # copies: a tensor that `to` returns itself has no gradient when torch 2.11 compiles this
        results = (losses, normalisers, totals) if whole else (losses, None, None)
        return tuple([None if each is None else each.to(hidden.device, copy=True) for each in results])

    @staticmethod
    def backward(
        ctx: Any, of_losses: Tensor | None, of_normalisers: Tensor | None, of_totals: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        upstream = (of_losses, of_normalisers, of_totals)
        if torch.is_grad_enabled():
            return _with_graph(ctx, upstream)
        hidden, weight, bias, labels, normalisers = ctx.saved_tensors
        rows, ignore_index, softcap, dtype = ctx.options
        head, shift = weight.to(dtype), None if bias is None else bias.to(weight.device, dtype)
        wide, device = _at_least_float32(dtype), weight.device
        of_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        of_weight = torch.zeros_like(weight, dtype=wide) if ctx.needs_input_grad[1] else None
        of_bias = torch.zeros_like(bias, dtype=wide, device=device) if ctx.needs_input_grad[2] else None
        for start in range(0, len(hidden), rows):
            chunk = slice(start, start + rows)
            states, targets = hidden[chunk].to(device, dtype), labels[chunk].to(device)
            given = [None if each is None else each[chunk].to(device, wide) for each in upstream]
            scale = torch.zeros_like(normalisers[chunk]) if given[0] is None else given[0]
            scale = torch.where(targets == ignore_index, 0, scale)
            logits = _logits(states, head, shift, softcap)
            places = _places(targets, ignore_index)
            gradient = _of_logits(logits, normalisers[chunk], places, scale, given[1], given[2], softcap)
            if of_bias is not None:
                of_bias += gradient.sum(0)
            gradient = gradient.to(dtype)
            if of_hidden is not None:
                of_hidden[chunk].copy_(gradient @ head)
            if of_weight is not None:
                if gradient.dtype == wide:
                    of_weight.addmm_(gradient.t(), states)
                else:
                    of_weight += gradient.t() @ states
            del logits, gradient  # otherwise they would live until the next chunk has made its own
        if of_weight is not None:
            of_weight = of_weight.to(weight.dtype)
        if of_bias is not None:
            of_bias = of_bias.to(bias)
        return of_hidden, of_weight, of_bias, *_NO_MORE


def _with_graph(ctx: Any, upstream: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Compute the gradients with a graph of their own, by autograd, from whole logits."""
    *given, labels, _ = cast(Sequence[Any], ctx.saved_tensors)
    _, ignore_index, softcap, dtype = ctx.options
    # views, because with tied embeddings the hidden states were computed from the weight
    views = [None if tensor is None else tensor.view_as(tensor) for tensor in given]
    hidden, weight, bias = cast(tuple[Tensor, Tensor, Tensor | None], views)
    states, targets = hidden.to(weight.device, dtype), labels.to(weight.device)
    logits = F.linear(states, weight.to(dtype), None if bias is None else bias.to(weight.device, dtype))
    logits = logits.to(_at_least_float32(dtype))
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    chosen, normalisers = _chosen(logits, targets, ignore_index)
    losses = torch.where(targets == ignore_index, 0, normalisers - chosen)
    pairs = [
        (value, each.to(value))
        for value, each in zip((losses, normalisers, logits.sum(-1)), upstream, strict=True)
        if each is not None
    ]
    needed = ctx.needs_input_grad[:3]
    wanted = [
        tensor for tensor, need in zip((hidden, weight, bias), needed, strict=True) if need and tensor is not None
    ]
    values, gradients = zip(*pairs, strict=True)
    found = iter(torch.autograd.grad(values, wanted, gradients, create_graph=True))
    return *(next(found) if need else None for need in needed), *_NO_MORE


def _logits(states: Tensor, weight: Tensor, bias: Tensor | None, softcap: float | None) -> Tensor:
    """Compute logits in float32 at least, and in memory of their own."""
    logits = F.linear(states, weight, bias).to(_at_least_float32(states.dtype))
    return logits if softcap is None else logits.div_(softcap).tanh_().mul_(softcap)


def _chosen(logits: Tensor, targets: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Return for each row the logit of its target, and the logsumexp of all."""
    chosen = logits.gather(1, _places(targets, ignore_index))[:, 0]
    return chosen, torch.logsumexp(logits, dim=-1)


def _of_logits(
    logits: Tensor,
    normalisers: Tensor,
    places: Tensor,
    of_losses: Tensor,
    of_normalisers: Tensor | None,
    of_totals: Tensor | None,
    softcap: float | None,
) -> Tensor:
    """Compute the gradient of the logits before their softcap from those of the statistics. Overwrites `logits`."""
    slope = None if softcap is None else (logits / softcap).square_().neg_().add_(1)
    gradient = logits.sub_(normalisers[:, None]).exp_()
    if of_normalisers is None:
        gradient.scatter_add_(1, places, gradient.new_full(places.shape, -1))
        gradient.mul_(of_losses[:, None])
    else:
        gradient.mul_((of_losses + of_normalisers)[:, None])
        gradient.scatter_add_(1, places, -of_losses[:, None])
    if of_totals is not None:
        gradient.add_(of_totals[:, None])
    return gradient if slope is None else gradient.mul_(slope)


def _places(targets: Tensor, ignore_index: int) -> Tensor:
    """Return the column of each row's target, (rows, 1); any column if that is ignored."""
    return torch.where(targets == ignore_index, 0, targets)[:, None]


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _product_dtype(hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None) -> torch.dtype:
    """Return the dtype in which F.linear would multiply on the device of `weight`."""
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise OptionTypeError(f"labels are class indices of an integer dtype, not {labels.dtype}")
    dtypes = {"hidden": hidden.dtype, "weight": weight.dtype} | ({} if bias is None else {"bias": bias.dtype})
    listed = ", ".join(f"{name} {dtype}" for name, dtype in dtypes.items())
    if not all(dtype.is_floating_point for dtype in dtypes.values()):
        raise OptionTypeError(f"hidden, weight and bias have to be floating point, not {listed}")
    device = weight.device.type
    used = set(dtypes.values())
    if is_autocast_available(device) and torch.is_autocast_enabled(device):
        used = {dtype if dtype == torch.float64 else torch.get_autocast_dtype(device) for dtype in used}
    if len(used) != 1:
        raise OptionTypeError(f"hidden, weight and bias have to have one dtype outside autocast, not {listed}")
    return used.pop()


def _check_shapes(hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None) -> None:
    tensors: dict[str, object] = {"hidden": hidden, "weight": weight, "labels": labels, "bias": bias}
    for name, value in tensors.items():
        if not isinstance(value, Tensor) and not (name == "bias" and value is None):
            raise OptionTypeError(f"{name} is of type {type(value).__name__}: give a tensor")
    if any(hasattr(value, "device_mesh") for value in (hidden, weight, bias)):
        raise OptionTypeError(
            "hidden, weight and bias have to be whole, and one is a DTensor: call this in the forward of the module "
            'that FSDP2 holds, where they are, or on full_tensor(grad_placements=[Partial("avg")]); without '
            "grad_placements each rank would keep its gradient to itself"
        )
    if weight.ndim != 2 or not weight.shape[0]:
        raise OptionError(f"weight has to be (vocabulary, hidden size), and whole, not {tuple(weight.shape)}")
    if hidden.ndim < 1 or hidden.shape[-1] != weight.shape[1]:
        raise OptionError(f"hidden has to end in the {weight.shape[1]} columns of weight, not {tuple(hidden.shape)}")
    if labels.shape != hidden.shape[:-1]:
        raise OptionError(
            f"labels have to be {tuple(hidden.shape[:-1])}, one for each vector of hidden, not {tuple(labels.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise OptionError(f"bias has to be ({weight.shape[0]},), one for each row of weight, not {tuple(bias.shape)}")


def _liger(
    hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Callable[..., Tensor] | None:
    """Return Liger's loss if it is installed, sums gradients in float32, and keeps what this module promises.

    It makes all its tensors on one device, and works in float32. It rounds gradients before a gradient scaler
    scales them, which is too coarse for float16, and computes them only if `hidden` requires one. Those of unreduced
    losses are wrong up to 0.8.1.
    """
    of_head = [weight] if bias is None else [weight, bias]
    devices = {value.device for value in (hidden, labels, *of_head)}
    wanted = hidden.requires_grad or not any(value.requires_grad for value in of_head)
    possible = len(devices) == 1 and hidden.device.type in _LIGER_DEVICES and len(hidden) > 0 and wanted
    if not possible or dtype not in (torch.float32, torch.bfloat16):
        return None
    try:
        module = importlib.import_module("liger_kernel.transformers.functional")
    except ImportError:
        return None
    loss: Callable[..., Tensor] = module.liger_fused_linear_cross_entropy
    return loss if "accum_dtype" in inspect.signature(loss).parameters else None
