"""Operators that round what they read: a block that rounds with the gradient of the identity hides drift by them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ckpt_surgery.runtime.tools.containers import is_differentiable

Note = Callable[[Tensor], None]

_ROUNDING = frozenset({"argmax", "argmin", "ceil", "floor", "round", "sign", "trunc"})
_FAKE_QUANTIZING = "fake_quantize_"


def note_operand(note: Note, func: Any, args: tuple[Any, ...]) -> None:
    """Show `note` the tensor that `func`, an operator, is about to round."""
    name = func.overloadpacket.__name__.removesuffix("_")
    if (name in _ROUNDING or name.startswith(_FAKE_QUANTIZING)) and args and is_differentiable(args[0]):
        note(args[0])


class RoundedOperands(TorchDispatchMode):
    """Shows `note` each tensor that is rounded inside its `with`, before it is."""

    def __init__(self, note: Note) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._note = note

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        note_operand(self._note, func, args)
        return func(*args, **(kwargs or {}))
