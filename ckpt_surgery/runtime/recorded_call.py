"""One call of a block as it was at entry: recorded, checked before it is run again, and rebuilt."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.runtime.block_state import BlockState
from ckpt_surgery.runtime.call_arguments import Arguments, BlockSignature, is_cache
from ckpt_surgery.runtime.containers import PLAIN, Flattener, hidden_tensors, unflatten
from ckpt_surgery.runtime.tensors import version


class RecordedCall:
    """A call of `forward`, which runs `block`, with `arguments`.

    `tensors` are the arguments that require gradient, each once, in their order; whoever runs the call takes them
    away, so that they do not live as long as the record. `writable` tells whether an argument holds a container that
    the call can write into.
    """

    __slots__ = ("_constants", "_opaque", "_specs", "block", "forward", "signature", "state", "tensors", "writable")

    def __init__(
        self,
        block: nn.Module,
        forward: Callable[..., Any],
        signature: BlockSignature,
        state: BlockState,
        arguments: Arguments,
    ) -> None:
        args, kwargs = arguments
        flattener = Flattener(_requires_gradient)
        specs = [
            value
            if type(value) in PLAIN
            else flattener.flatten(_own_copy(value) if name in signature.past else value, name)
            for name, value in signature.named(args, kwargs)
        ]
        self.block = block
        self.forward = forward
        self.signature = signature
        self.state = state
        self.tensors = flattener.tensors
        self.writable = flattener.writable
        self._specs = tuple(specs[: len(args)]), dict(zip(kwargs, specs[len(args) :], strict=True))
        self._constants = [(name, tensor, version(tensor)) for name, tensor in flattener.constants]
        self._opaque = [(n, value, None if is_cache(value) else _contents(value)) for n, value in flattener.opaque]

    @property
    def place(self) -> str:
        """Which block this is, for messages."""
        return self.signature.place

    def constants(self) -> Iterator[Tensor]:
        """The tensors among the arguments that do not require gradient."""
        return (tensor for _, tensor, _ in self._constants)

    def rebuilt(self, given: Sequence[Tensor]) -> Arguments:
        """The arguments as they were, with `given` in the places of `tensors`.

        Raises SurgeryError where the block would now compute something else.
        """
        self._check_unchanged()
        positional, keywords = self._specs
        args = tuple([unflatten(spec, given) for spec in positional])
        return args, {n: spec if type(spec) in PLAIN else unflatten(spec, given) for n, spec in keywords.items()}

    def refuse_hidden_gradients(self) -> None:
        """Raise SurgeryError where an object of unknown structure holds tensors that require gradient."""
        for name, value, _ in self._opaque:
            if any(map(_requires_gradient, hidden_tensors(value))):
                raise SurgeryError(
                    f"{self.place} got tensors with gradient inside a {type(value).__name__} in its argument {name}: "
                    "with use_reentrant=True their gradient would be lost; use use_reentrant=False"
                )

    def _check_unchanged(self) -> None:
        if not self.block.training:
            raise SurgeryError(
                f"{self.place} cannot be recomputed: the model was put into evaluation mode between forward and "
                "backward; call eval() after the backward"
            )
        for name, tensor, before in self._constants:
            if version(tensor) != before:
                raise SurgeryError(
                    f"{self.place} cannot be recomputed: its argument {name} was modified in place after the "
                    "forward; leave the block out, or give it a copy"
                )
        for name, value, contents in self._opaque:
            if contents is not None and _changed(value, contents):
                raise SurgeryError(
                    f"{self.place} cannot be recomputed: the {type(value).__name__} in its argument {name} holds "
                    "other tensors than before the forward; leave the block out, or give it a dict or list of tensors"
                )


def _requires_gradient(tensor: Tensor) -> bool:
    return tensor.requires_grad


def _own_copy(value: Any) -> Any:
    """Past state as it is now: the caller may write into it before the recompute."""
    if isinstance(value, Tensor):
        return value if value.requires_grad else value.clone()
    if isinstance(value, (tuple, list)):
        return type(value)(map(_own_copy, value)) if not hasattr(value, "_fields") else value
    return value


def _contents(value: Any) -> list[tuple[weakref.ref[Tensor], int]]:
    return [(weakref.ref(tensor), version(tensor)) for tensor in hidden_tensors(value)]


def _changed(value: Any, contents: list[tuple[weakref.ref[Tensor], int]]) -> bool:
    """Whether an object of unknown structure holds other tensors than it did, or other values in them."""
    now = list(hidden_tensors(value))
    return len(now) != len(contents) or any(
        reference() is not tensor or version(tensor) != before
        for tensor, (reference, before) in zip(now, contents, strict=True)
    )
