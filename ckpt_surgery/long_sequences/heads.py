"""The heads of a model: which of them may return logits that are not there, and why others may not.

What such a head returns is in `lazy_logits`, and when it does in `fused_head`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from torch import nn

from ckpt_surgery.runtime.tools.classes import is_sharded

LABELS = ("labels", "shift_labels")
"""The arguments of a model's forward that mean that it computes its loss."""
ITEMS = "num_items_in_batch"
"""What transformers' Trainer gives in a training step, also where it keeps the labels for a loss of its own."""


class HeadReason(StrEnum):
    """Why the loss of a head is not fused."""

    NO_HEAD = "it has no output embeddings"
    NOT_LINEAR = "its head is no nn.Linear"
    ADAPTED = "its head has an adapter, whose own logits would be made: leave lm_head out of target_modules"
    SHARDED = "FSDP2 shards its head by itself, and takes its weight away before the loss: leave it to the root"
    REPLACED = "the forward of its head is not that of its class: take back what replaced it first"


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """The head of one model inside the one given: fused if `reason` is None. `owner` is the model's class."""

    name: str
    owner: str
    module: nn.Module | None
    reason: HeadReason | None

    @property
    def reason_now(self) -> HeadReason | None:
        """The reason, also where FSDP2 has sharded the head since it was found."""
        sharded = self.module is not None and is_sharded(self.module)
        return self.reason or (HeadReason.SHARDED if sharded else None)


def heads_of(model: nn.Module) -> list[Head]:
    """The heads of the models of transformers inside `model`, each once, and why some are not fused."""
    heads: dict[Any, Head] = {}
    candidates = list(owners(model))
    for name, owner in candidates:
        head = owner.get_output_embeddings()  # type: ignore[operator]
        if head is None:
            continue
        for part in trained_copies(head):
            heads.setdefault(part, Head(name, type(owner).__name__, part, _reason(part)))
    if not heads:
        name = next((type(owner).__name__ for _, owner in candidates), type(model).__name__)
        return [Head("", name, None, HeadReason.NO_HEAD)]
    return list(heads.values())


def takes_labels(model: nn.Module) -> bool:
    """Whether a model computes its loss by itself."""
    return not set(LABELS).isdisjoint(inspect.signature(model.forward).parameters)


def owners(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The models of transformers inside `model`, itself among them, that can have a head, with their names."""
    for name, module in model.named_modules():
        if hasattr(type(module), "get_output_embeddings") and hasattr(type(module), "base_model_prefix"):
            yield name, module


def trained_copies(head: nn.Module) -> list[nn.Module]:
    """The head, or the copies of it that PEFT trains in its place (`modules_to_save`)."""
    copies = getattr(head, "modules_to_save", None)
    return list(copies.values()) if isinstance(copies, nn.ModuleDict) and len(copies) else [head]


def _reason(head: nn.Module) -> HeadReason | None:
    if hasattr(head, "base_layer"):
        return HeadReason.ADAPTED
    if is_sharded(head):
        return HeadReason.SHARDED
    if not isinstance(head, nn.Linear) or type(head).forward is not nn.Linear.forward:
        return HeadReason.NOT_LINEAR
    forward = vars(head).get("forward")
    if forward is not None and not getattr(forward, "retired", False):  # one of an undone `fuse_loss` does nothing
        return HeadReason.REPLACED
    return None
