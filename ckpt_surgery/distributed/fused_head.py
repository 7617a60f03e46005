"""`fuse_loss`: a language model of transformers whose training loss never makes its logits.

Which models can be changed, and what happens in a forward. The loss itself is in `fused_loss`.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ckpt_surgery.distributed.fused_loss import fused_linear_cross_entropy
from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.runtime.undo import Undoable

_LOSS = "_loss_function"
_IGNORED = -100


def fuse_loss(model: nn.Module) -> FusedLoss:
    """Let `model` compute its own loss with `fused_linear_cross_entropy`, a chunk of tokens at a time.

    `model` is a causal language model of transformers with a linear head whose loss is the library's `ForCausalLMLoss`
    on the head's own result. In a forward in training mode with gradients on and `labels` given, the head is not run,
    and the loss is computed from what it was given. `output.logits` is then of its usual shape, takes no memory and is
    NaN everywhere: what computes anything of it, such as an accuracy in training, sees that. Without labels, in
    evaluation and under `no_grad` nothing changes.

    Loss and gradients are those of the model up to rounding: the products are in the dtype of the head, the loss in
    float32. Under FSDP2 the head must belong to the model around it and not be sharded by itself.

    Returns:
        The change: `undo()` it, or use it in a `with`.

    Raises:
        SurgeryError: the model has no such head or loss, or is changed already. A forward that scales or caps its
            logits, runs its head twice or computes its loss in another way raises it too.
    """
    if not isinstance(model, nn.Module):
        raise SurgeryError(f"the model is of type {type(model).__name__}: give a torch.nn.Module")
    name = type(model).__name__
    find_head: Any = getattr(model, "get_output_embeddings", None)
    head = find_head() if find_head is not None else None
    if type(head) is not nn.Linear:
        kind = "no head" if head is None else f"a head of class {type(head).__name__}"
        raise SurgeryError(f"{name} has {kind}: fuse_loss takes models with a head of class Linear")
    if "forward" in vars(head):
        raise SurgeryError(f"the head of {name} has a forward of its own on it: undo that first")
    if not _is_causal(getattr(model, "loss_function", None)):
        raise SurgeryError(f"{name} has another loss than ForCausalLMLoss: call fused_linear_cross_entropy instead")
    return FusedLoss(model, head)


class FusedLoss(Undoable):
    """A model with a fused loss, until `undo`. Made by `fuse_loss`; also a context manager."""

    def __init__(self, model: nn.Module, head: nn.Linear) -> None:
        self._model, self._head = model, head
        self._active = False
        self._hidden: Tensor | None = None
        self._logits: Tensor | None = None
        self._done = False
        self._had_loss, self._loss_before = _LOSS in vars(model), vars(model).get(_LOSS)
        self._original: Any = model.loss_function
        self._parameters = list(inspect.signature(model.forward).parameters)
        self._handles = [
            model.register_forward_pre_hook(self._enter, with_kwargs=True),
            model.register_forward_hook(self._check),
            model.register_forward_hook(self._leave, always_call=True),
        ]
        vars(head)["forward"] = self._run_head
        vars(model)[_LOSS] = self._loss

    def __str__(self) -> str:
        return f"{type(self._model).__name__} with a fused loss{', undone' if self._undone else ''}"

    def undo(self) -> None:
        """Give the model its loss and its head back. Raises SurgeryError where that was done before."""
        if self._undone:
            raise SurgeryError("the fused loss was undone before: call fuse_loss again for another one")
        for handle in self._handles:
            handle.remove()
        if vars(self._head).get("forward") == self._run_head:
            del vars(self._head)["forward"]
        if vars(self._model).get(_LOSS) == self._loss:
            del vars(self._model)[_LOSS]
            if self._had_loss:
                vars(self._model)[_LOSS] = self._loss_before
        self._undone = True

    def _enter(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = {**dict(zip(self._parameters, args, strict=False)), **kwargs}
        self._active = model.training and torch.is_grad_enabled() and given.get("labels") is not None
        self._hidden, self._logits, self._done = None, None, False

    def _check(self, *_: Any) -> None:
        if self._hidden is not None and not self._done:
            self._refuse("computes its loss in another way")

    def _leave(self, *_: Any) -> None:
        self._active, self._hidden, self._logits = False, None, None

    def _run_head(self, hidden: Tensor) -> Tensor:
        """What the head returns: its result, or, in a forward whose loss is fused, a tensor of its shape and NaN."""
        if not self._active:
            return functional.linear(hidden, self._head.weight, self._head.bias)
        if self._hidden is not None:
            self._refuse("runs its head twice")
        self._hidden = hidden
        nothing = torch.full((), float("nan"), dtype=torch.float32, device=hidden.device)
        self._logits = nothing.expand(*hidden.shape[:-1], self._head.out_features)
        return self._logits

    def _loss(
        self,
        logits: Tensor,
        labels: Tensor,
        vocab_size: int | None = None,
        num_items_in_batch: Tensor | int | None = None,
        ignore_index: int = _IGNORED,
        shift_labels: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """`ForCausalLMLoss` of transformers, with the head in it."""
        if self._hidden is None:
            given = {"num_items_in_batch": num_items_in_batch, "ignore_index": ignore_index}
            loss: Tensor = self._original(
                logits=logits, labels=labels, vocab_size=vocab_size, shift_labels=shift_labels, **given, **kwargs
            )
            return loss
        if logits is not self._logits:
            self._refuse("changes its logits before the loss")
        if shift_labels is None:
            shift_labels = functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
        summed = num_items_in_batch is not None
        loss = fused_linear_cross_entropy(
            self._hidden,
            self._head.weight,
            shift_labels.to(self._hidden.device).reshape(self._hidden.shape[:-1]),
            self._head.bias,
            ignore_index=ignore_index,
            reduction="sum" if summed else "mean",
        )
        self._done = True
        count = num_items_in_batch.to(loss.device) if isinstance(num_items_in_batch, Tensor) else num_items_in_batch
        return loss / count if count is not None else loss

    def _refuse(self, why: str) -> None:
        name = type(self._model).__name__
        raise SurgeryError(f"{name} {why}: undo fuse_loss, and call fused_linear_cross_entropy yourself")


def _is_causal(loss: Any) -> bool:
    from transformers.loss.loss_utils import ForCausalLMLoss

    return loss is ForCausalLMLoss
