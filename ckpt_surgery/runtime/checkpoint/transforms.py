"""The transforms of torch.func that a checkpointed block cannot run in."""

from __future__ import annotations

import torch

from ckpt_surgery.errors import SurgeryError

_Kind = torch._C._functorch.TransformType


def refuse_transforms(place: str) -> None:
    """Raise SurgeryError where a block that is checkpointed is called in a transform that does not go with it.

    torch.func.grad and what is made of it take no hooks on saved tensors, and the tensors of a vmap cannot be used
    after it.
    """
    if torch._C._functorch.peek_interpreter_stack() is None:
        return
    kinds = {level.key() for level in torch._C._functorch.get_interpreter_stack() or ()}
    if _Kind.Grad in kinds or (_Kind.Vmap in kinds and _Kind.Jvp not in kinds):
        name = "vmap" if _Kind.Grad not in kinds else "grad, or one that is made of it"
        raise SurgeryError(
            f"{place} cannot be checkpointed inside a transform of torch.func ({name}): switch checkpointing off "
            "around it, with undo() on the surgery"
        )
