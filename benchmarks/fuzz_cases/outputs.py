"""The forms in which blocks return their hidden states."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.fuzz_cases.feature import Output


class TupleOutput(Output):
    """A tuple with None and attention weights."""

    def pack(self, block: Any, hidden: Tensor, given: Tensor) -> Any:
        return hidden, None, torch.softmax(hidden, -1)

    def unpack(self, result: Any) -> tuple[Tensor, list[Tensor]]:
        return result[0], [result[2]]


class UnusedOutput(TupleOutput):
    """A tuple of which the model uses the hidden states only."""

    def unpack(self, result: Any) -> tuple[Tensor, list[Tensor]]:
        return result[0], []


class DictOutput(Output):
    """A dictionary, ordered or not."""

    def pack(self, block: Any, hidden: Tensor, given: Tensor) -> Any:
        kind = OrderedDict if self._variant else dict
        return kind(hidden=hidden, extra=hidden.square())

    def unpack(self, result: Any) -> tuple[Tensor, list[Tensor]]:
        return result["hidden"], [result["extra"]]


@dataclass
class BlockOutput:
    """What a block returns, by name."""

    hidden: Tensor
    extras: tuple[Tensor, ...] = ()


class DataclassOutput(Output):
    """A dataclass."""

    def pack(self, block: Any, hidden: Tensor, given: Tensor) -> Any:
        return BlockOutput(hidden, (torch.sin(hidden), hidden.detach()))

    def unpack(self, result: Any) -> tuple[Tensor, list[Tensor]]:
        return result.hidden, list(result.extras)


class NamedOutput(NamedTuple):
    """What a block returns, by name and place."""

    hidden: Tensor
    extra: Tensor


class NamedTupleOutput(Output):
    """A named tuple."""

    def pack(self, block: Any, hidden: Tensor, given: Tensor) -> Any:
        return NamedOutput(hidden, hidden.exp())

    def unpack(self, result: Any) -> tuple[Tensor, list[Tensor]]:
        return result.hidden, [result.extra]


class NestedOutput(Output):
    """A list in a dictionary in a tuple."""

    def pack(self, block: Any, hidden: Tensor, given: Tensor) -> Any:
        return hidden, {"a": [torch.sin(hidden), (hidden.detach(), 3)]}

    def unpack(self, result: Any) -> tuple[Tensor, list[Tensor]]:
        return result[0], [result[1]["a"][0], result[1]["a"][1][0]]


class SameTensorOutput(Output):
    """The same tensor at two places."""

    def pack(self, block: Any, hidden: Tensor, given: Tensor) -> Any:
        return hidden, hidden

    def unpack(self, result: Any) -> tuple[Tensor, list[Tensor]]:
        return result[0], [result[1] * 2]


class ViewOutput(Output):
    """A view beside what it is a view of."""

    def pack(self, block: Any, hidden: Tensor, given: Tensor) -> Any:
        return hidden, hidden[:, 1:].transpose(0, 1)

    def unpack(self, result: Any) -> tuple[Tensor, list[Tensor]]:
        return result[0], [result[1]]


class TableOutput(Output):
    """A table that is an attribute of the block, beside what it made."""

    def build(self, block: Any, index: int) -> None:
        block.returned_table = torch.linspace(0, 1, 8)

    def pack(self, block: Any, hidden: Tensor, given: Tensor) -> Any:
        return hidden * torch.cos(block.returned_table), block.returned_table

    def unpack(self, result: Any) -> tuple[Tensor, list[Tensor]]:
        return result[0] * result[1], [result[1]]


class GivenOutput(Output):
    """What the block was given, untouched or as a view, beside what it made."""

    def pack(self, block: Any, hidden: Tensor, given: Tensor) -> Any:
        return hidden, given, given[:, :1]

    def unpack(self, result: Any) -> tuple[Tensor, list[Tensor]]:
        return result[0], [result[1], result[2]]


class WeightOutput(Output):
    """A parameter of the block, and a view of one."""

    def pack(self, block: Any, hidden: Tensor, given: Tensor) -> Any:
        return hidden, block.up.weight, block.down.weight[1:]

    def unpack(self, result: Any) -> tuple[Tensor, list[Tensor]]:
        return result[0], [result[1], result[2]]


class NumberOutput(Output):
    """A number and a text beside the hidden states."""

    def pack(self, block: Any, hidden: Tensor, given: Tensor) -> Any:
        return [hidden, float(hidden.detach().mean()), "text"]

    def unpack(self, result: Any) -> tuple[Tensor, list[Tensor]]:
        return result[0] * (1 + 0.1 * result[1]), []


class ComplexOutput(Output):
    """Complex numbers beside the hidden states."""

    def pack(self, block: Any, hidden: Tensor, given: Tensor) -> Any:
        hidden = hidden if hidden.dtype == torch.float64 else hidden.float()
        return hidden, torch.complex(hidden, torch.sin(hidden))

    def unpack(self, result: Any) -> tuple[Tensor, list[Tensor]]:
        return result[0], [result[1].abs()]


class StoredOutput(Output):
    """What the block returns is also on the block, where the model reads it."""

    def pack(self, block: Any, hidden: Tensor, given: Tensor) -> Any:
        block.output = torch.sin(hidden)
        return hidden

    def after_block(self, model: Any, hidden: Any, index: int) -> Any:
        return hidden + 0.1 * model.layers[index].output
