"""Cut a block's arguments to those of a tile, and find the whole ones for attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ckpt_surgery.long_sequences.attention_call import CannotCut
from ckpt_surgery.runtime.checkpoint.call_arguments import Arguments
from ckpt_surgery.runtime.tools.containers import tensors
from ckpt_surgery.torch_names import tree_map


class _Input:
    """A marker for the input of the block among its arguments: nothing holds on to the input itself."""


@dataclass(frozen=True, slots=True, eq=False)
class CutArguments:
    """The arguments of a call of a block, without its input, which is (batch, tokens, width)."""

    given: Arguments
    batch: int
    tokens: int

    @classmethod
    def of(cls, given: Arguments, values: Tensor) -> CutArguments:
        """Record the arguments of a call whose input is `values`."""
        without = tree_map(lambda value: _Input if value is values else value, given)
        return cls(without, values.shape[0], values.shape[1])

    def tile(self, values: Tensor, part: slice) -> tuple[Arguments, dict[int, Tensor]]:
        """Return the arguments for one part of the input, `values`, with other tensors of tokens cut to that part.

        Also returns the whole tensor of each piece, by the id of the piece.
        """
        wholes: dict[int, Tensor] = {}

        def cut(value: Any) -> Any:
            if value is _Input:
                return values
            if not isinstance(value, Tensor):
                return value
            piece = self._cut(value, part)
            wholes[id(piece)] = value
            return piece

        return tree_map(cut, self.given), wholes

    def _cut(self, tensor: Tensor, part: slice) -> Tensor:
        shape = tuple(tensor.shape)
        if shape == (self.tokens,):
            return tensor[part]
        if len(shape) >= 2 and shape[1] == self.tokens:  # (batch, tokens, ...)
            return tensor[:, part]
        if len(shape) == 3 and shape[1:] == (self.batch, self.tokens):  # positions along each axis of a picture
            return tensor[:, :, part]
        return tensor

    @property
    def bytes_beside(self) -> int:
        """The bytes per token of the arguments other than the input: rotary tables, a mask."""
        return sum(tensor.nbytes for tensor in tensors(self.given)) // (self.batch * self.tokens)


def whole_argument(known: Mapping[int, Tensor], name: str, value: Any) -> Any:
    """Return an argument of attention for the whole sequence. Raises CannotCut if it is not known."""
    if isinstance(value, Tensor):
        if id(value) not in known:
            raise CannotCut(f"its attention is given {name}, a tensor that the block makes or holds")
        return known[id(value)]
    if any(True for _ in tensors(value)):
        raise CannotCut(f"its attention is given {name}, which holds tensors")
    return value
