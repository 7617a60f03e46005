"""Estimate the bytes per token on the device and the host while blocks are cut, from widths alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ckpt_surgery.long_sequences.cut_arguments import CutArguments

_SUM = 4
"""Bytes of a sum of attention weights in single precision; a token has one for each head."""
FREE_SHARE = 0.92
"""The share of a device's memory that a step may take: the rest is for what is not counted."""


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """Bytes per token in a block: of its `input`, its heads, attention's result, and the other arguments (`beside`).

    Attention runs in `groups` of the query heads, of which there are `heads`, each `width` wide; keys are `shared`
    where there are fewer.
    """

    input: int
    queries: int
    keys: int
    values: int
    attended: int
    beside: int
    heads: int
    width: int
    groups: int
    shared: bool

    @classmethod
    def of(cls, arguments: CutArguments, tile: Tensor, heads: Sequence[Tensor], groups: int) -> TokenBytes:
        """Count by a tile of the input and its queries, keys and values, (batch, heads, tokens, width)."""
        queries, keys, values = heads
        count, width = queries.shape[1], queries.shape[3]
        q, k, v = (each.shape[1] * each.shape[3] * each.itemsize for each in heads)
        attended = count * values.shape[3] * values.itemsize
        size = tile.shape[2] * tile.itemsize
        return cls(size, q, k, v, attended, arguments.bytes_beside, count, width, groups, keys.shape[1] < count)

    def on_device(self, *, parks: bool) -> int:
        """Return what a token adds to the peak, which a long sequence has in the backward of attention.

        For each group of heads, what attention returned and its gradient are there until the group is done, and then
        the gradients of its heads. The queries, keys and values are there until then too, and so are the input, that
        of the next block, and the gradient of the output; if a block `parks`, only the heads of the group that runs,
        and that gradient. The kernel holds sums of rows, the gradient of queries in single precision and of a padded
        width, and those of keys and values for each head of queries.
        """
        heads = self.queries + self.keys + self.values
        done = 2 * self.attended + _SUM * self.heads
        columns = self.width + -self.width % (32 if self.width <= 128 else 64)
        group = heads + (4 * columns + _SUM) * self.heads + (self.queries + self.attended) * self.shared
        if not parks:
            return 3 * self.input + self.beside + done + heads + group // self.groups
        later = max(heads - done, 0) * (self.groups - 1) // self.groups
        return self.input + self.beside + done + later + (group + heads) // self.groups


def free_bytes(device: torch.device) -> int | None:
    """Return the bytes that a step may still take of a device; None if it is not a CUDA device."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free + unused - (1 - FREE_SHARE) * total)
