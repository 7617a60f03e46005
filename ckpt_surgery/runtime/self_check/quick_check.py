"""Check one call of a block by exact sums alone, which costs next to nothing.

If sums that can be read at once differ, the block runs a few more times: if those runs agree, the difference is not
noise, and is refused. Sums that a device has yet to compute are compared together when the backward has ended. If a
difference may be noise, the block is suspected: its next call gets a close check.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.runtime.self_check.check import (
    MORE_RUNS,
    CloseTrace,
    SelfCheck,
    cause,
    equal,
    has_noise,
    may_be_unset,
)
from ckpt_surgery.runtime.self_check.digests import Digest
from ckpt_surgery.runtime.self_check.schedule import CheckSchedule
from ckpt_surgery.runtime.tools.error_policy import ErrorPolicy
from ckpt_surgery.runtime.tools.rng import torch_states
from ckpt_surgery.runtime.tools.tensors import unseen
from ckpt_surgery.torch_names import engine

_waiting: deque[tuple[CheckSchedule, Sequence[tuple[Tensor, Tensor]]]] = deque()
"""The sums on devices that are still to be compared, with the schedules of their blocks."""


class QuickCheck(SelfCheck):
    """A comparison of what one call of a block and its recompute save, by exact sums."""

    __slots__ = ("_forward_digest",)

    def __init__(self, place: str, block: nn.Module, error_policy: ErrorPolicy, schedule: CheckSchedule) -> None:
        super().__init__(place, block, error_policy, schedule)
        self._forward_digest: Digest | None = None

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Sum over what operators save in the forward inside."""
        held: list[Tensor] = []
        with self._saved_tensors(held.append):
            yield
        with self._error_policy:
            self._forward_digest = self._digest(held)

    def recompute(self, run: Callable[[], None]) -> None:
        """Run a recompute and compare it with the forward; `run` may be called several times.

        Raises SurgeryError if the recompute is known to have given a different result than the forward.
        """
        if (forward := self._forward_digest) is None:  # a backward inside the forward, which has no digest yet
            with self._saved_tensors(lambda tensor: None):
                run()
            return
        look = partial(self._look_closely, run, torch_states(())) if forward.is_ready else None
        held: list[Tensor] = []

        def judge(*, complete: bool = False) -> None:
            self._compare(forward, self._digest(held, forward), look, complete=complete)

        self._run_and_judge(run, held.append, judge)

    def _digest(self, held: list[Tensor], like: Digest | None = None) -> Digest:
        forward = Digest.of(
            held, partial(may_be_unset, block=self._block), self._schedule.plan, like.plan if like else None
        )
        self._schedule.plan = forward.plan
        held.clear()  # the graph holds the function that appends to it
        return forward

    def _compare(
        self, forward: Digest, again: Digest, look: Callable[[], CloseTrace] | None, *, complete: bool = False
    ) -> None:
        """Compare a recompute, `complete` or as far as it came, with the forward."""
        if self._error_policy.reported:
            return
        number, waiting = forward.compare(again, self._block.parameters)
        if number is None and complete and again.count < forward.count:
            number = again.count
        if number is not None and look is not None:
            self._refuse(number, forward, look)
        elif number is not None:
            self._schedule.suspected = True
        elif waiting:
            _waiting.append((self._schedule, waiting))
            try:
                engine.queue_callback(_compare_waiting)
            except RuntimeError:  # saved tensors are unpacked outside of a backward
                _compare_waiting()

    def _refuse(self, number: int, forward: Digest, look: Callable[[], CloseTrace]) -> None:
        """Raise SurgeryError for the part with this number, or suspect the block if it may be noise."""
        looks = [look() for _ in range(MORE_RUNS[0])]
        repeatable = all(equal(looks[0].prints, each.prints) for each in looks[1:])
        if not repeatable and has_noise(self._block):
            self._schedule.suspected = True
            return
        owners = forward.plan.owners[: forward.count]
        number, count = owners[number], owners[-1] + 1
        found = looks[0].prints[number] if number < len(looks[0].prints) else None
        what = f"it saves {number} tensors of {count}"
        if found is not None:
            name = looks[0].names[number]
            what = f"a tensor of {found.form}{f' in {name}' if name else ''} has other values"
        raise SurgeryError(
            f"recomputing {self._place} gave a different result than its forward: {what}; "
            f"{cause(None, (), repeatable=repeatable)}"
        )


def _compare_waiting() -> None:
    """Compare the waiting sums of all blocks; this waits once for each device if all are equal."""
    entries: list[tuple[CheckSchedule, Sequence[tuple[Tensor, Tensor]]]] = []
    while _waiting:
        entries.append(_waiting.popleft())
    with unseen(), torch.no_grad():
        if entries and not _all_equal([pair for _, pairs in entries for pair in pairs]):
            for schedule, pairs in entries:
                schedule.suspected |= not _all_equal(pairs)


def _all_equal(pairs: Sequence[tuple[Tensor, Tensor]]) -> bool:
    """Tell whether the sums of all pairs are equal. Waits once for each device."""
    by_device: dict[torch.device, tuple[list[Tensor], list[Tensor]]] = {}
    for ours, theirs in pairs:
        first, second = by_device.setdefault(ours.device, ([], []))
        first.append(ours)
        second.append(theirs)
    return all(torch.equal(torch.stack(first), torch.stack(second)) for first, second in by_device.values())
