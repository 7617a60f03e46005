"""The forms in which blocks return their hidden states."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from benchmarks.fuzz_cases.feature import Output


@dataclass
class BlockOutput:
    """What a block returns, by name."""

    hidden: Tensor
    extras: tuple[Tensor, ...] = ()


class NamedOutput(NamedTuple):
    """What a block returns, by name and place."""

    hidden: Tensor
    extra: Tensor


def _complex(block: Any, hidden: Tensor, given: Tensor) -> Any:
    hidden = hidden.float()
    return hidden, torch.complex(hidden, torch.sin(hidden))


Pack = Callable[[Any, Tensor, Tensor], Any]
Unpack = Callable[[Any], tuple[Tensor, list[Tensor]]]


def _pair(result: Any) -> tuple[Tensor, list[Tensor]]:
    return result[0], list(result[1:])


_ROWS: dict[str, tuple[Pack, Unpack]] = {
    "TupleOutput": (lambda b, h, g: (h, None, torch.softmax(h, -1)), lambda result: (result[0], [result[2]])),
    "UnusedOutput": (lambda b, h, g: (h, torch.softmax(h, -1)), lambda result: (result[0], [])),
    "DictOutput": (lambda b, h, g: {"h": h, "extra": h.square()}, lambda result: (result["h"], [result["extra"]])),
    "OrderedOutput": (lambda b, h, g: OrderedDict(h=h, extra=h.square()), lambda r: (r["h"], [r["extra"]])),
    "DataclassOutput": (
        lambda b, h, g: BlockOutput(h, (torch.sin(h), h.detach())),
        lambda result: (result.hidden, list(result.extras)),
    ),
    "NamedTupleOutput": (lambda b, h, g: NamedOutput(h, h.exp()), _pair),
    "NestedOutput": (
        lambda b, h, g: (h, {"a": [torch.sin(h), (h.detach(), 3)]}),
        lambda result: (result[0], [result[1]["a"][0], result[1]["a"][1][0]]),
    ),
    "SameTensorOutput": (lambda b, h, g: (h, h), lambda result: (result[0], [result[1] * 2])),
    "ViewOutput": (lambda b, h, g: (h, h[:, 1:].transpose(0, 1)), _pair),
    "GivenOutput": (lambda b, h, g: (h, g, g[:, :1]), _pair),
    "WeightOutput": (lambda b, h, g: (h, b.up.weight, b.down.weight[1:]), _pair),
    "NumberOutput": (
        lambda b, h, g: [h, float(h.detach().mean()), "text"],
        lambda result: (result[0] * (1 + 0.1 * result[1]), []),
    ),
    "ComplexOutput": (_complex, lambda result: (result[0], [result[1].abs()])),
}


class _Row(Output):
    """A form of a row of the table."""

    packed: ClassVar[Pack]
    unpacked: ClassVar[Unpack]

    def pack(self, block: Any, hidden: Tensor, given: Tensor) -> Any:
        return type(self).packed(block, hidden, given)

    def unpack(self, result: Any) -> tuple[Tensor, list[Tensor]]:
        return type(self).unpacked(result)


TABLE: dict[str, type[Output]] = {
    name: type(name, (_Row,), {"__doc__": name, "packed": staticmethod(pack), "unpacked": staticmethod(unpack)})
    for name, (pack, unpack) in _ROWS.items()
}


class TableOutput(Output):
    """A table that is an attribute of the block, beside what it made."""

    def build(self, block: Any, index: int) -> None:
        block.returned_table = torch.linspace(0, 1, 8)

    def pack(self, block: Any, hidden: Tensor, given: Tensor) -> Any:
        return hidden * torch.cos(block.returned_table), block.returned_table

    def unpack(self, result: Any) -> tuple[Tensor, list[Tensor]]:
        return result[0] * result[1], [result[1]]


class StoredOutput(Output):
    """What the block returns is also on the block, where the model reads it."""

    def pack(self, block: Any, hidden: Tensor, given: Tensor) -> Any:
        block.output = torch.sin(hidden)
        return hidden

    def after_block(self, model: Any, hidden: Any, index: int) -> Any:
        return hidden + 0.1 * model.layers[index].output
