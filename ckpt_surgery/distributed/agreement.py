"""How the ranks of a group make sure, before they exchange anything of size, that all of them will do the same.

What they agree on is not known here: a number that has to be the same on every rank, and whether a rank has a fault.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ckpt_surgery.errors import DistributedError
from ckpt_surgery.text import ranks_in_words


@dataclass(frozen=True, slots=True)
class Ranks:
    """A group as one of its ranks sees it. `numbers` are their ranks in the whole job, in the group's order.

    `devices` are the kinds of device whose tensors the group's backend takes: cpu, cuda and others.
    """

    group: dist.ProcessGroup | None
    numbers: tuple[int, ...]
    devices: tuple[str, ...]

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.numbers)

    def device(self, wanted: torch.device | None) -> torch.device:
        """The device for small collectives: the CPU if the backend takes it, else `wanted` if it takes that."""
        if "cpu" in self.devices:
            return torch.device("cpu")
        return wanted if wanted is not None and wanted.type in self.devices else torch.device(self.devices[0])

    def agree(self, number: int, faulty: bool, device: torch.device) -> tuple[bool, bool]:
        """Whether `number` (0 to 2**63 - 1) is the same on every rank, and whether any rank is faulty.

        Takes one collective of three int64 on `device`.
        """
        extremes = torch.tensor([number, -number, int(faulty)], dtype=torch.int64, device=device)
        dist.all_reduce(extremes, dist.ReduceOp.MAX, self.group)
        highest, lowest, fault = extremes.tolist()
        return highest == -lowest, bool(fault)

    def gather(self, value: object) -> list[Any]:
        """What every rank passed, in the group's order; `value` can be pickled."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, self.group)
        return values

    def by_value(self, values: Sequence[Hashable]) -> Iterator[tuple[str, Any]]:
        """Each value once, with the ranks that have it in words; `values` has one for each rank."""
        for value in dict.fromkeys(values):
            having = [number for number, theirs in zip(self.numbers, values, strict=True) if theirs == value]
            yield ranks_in_words(having, self.size), value


def ranks_of(group: dist.ProcessGroup | None, caller: str) -> Ranks:
    """The ranks of `group`, or all of them where it is None; `caller` is whom errors name.

    Raises DistributedError where there is no process group, or this rank is not in `group`.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise DistributedError(
            f"{caller}: there is no process group on this rank. Start the script with torchrun and call "
            "torch.distributed.init_process_group() before."
        )
    if dist.get_rank(group) < 0:
        raise DistributedError(
            f"{caller}: rank {dist.get_rank()} is not in the group that it was given. Call it on the group's ranks "
            "only."
        )
    kinds = [pair.partition(":")[0] for pair in dist.get_backend_config(group).split(",")]
    numbers = dist.get_process_group_ranks(dist.group.WORLD if group is None else group)
    return Ranks(group, tuple(numbers), tuple(kinds))
