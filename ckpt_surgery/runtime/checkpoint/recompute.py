"""One call of a block under checkpointing: the first pass now, and the same computation again in the backward.

The function that checkpoints, and its options, are not known here. It is given a function of gradient tensors, and
decides the mode: it runs the first pass with gradients (non-reentrant, here) or without (`reentrant`).

1. Every tensor that carries gradient is a positional argument of that function, wherever the call had it.
2. The recompute sees what the first pass saw: arguments, containers and written state as they were at entry.
3. The recompute leaves nothing behind: it writes no buffer, attribute or container.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import checkpoint

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.runtime.checkpoint.block_state import BlockState
from ckpt_surgery.runtime.checkpoint.call_arguments import Arguments, BlockSignature
from ckpt_surgery.runtime.checkpoint.recorded_call import RecordedCall
from ckpt_surgery.runtime.contents import without_graph
from ckpt_surgery.runtime.recompute_mode import NOTHING, RecomputeMode
from ckpt_surgery.runtime.reentrant import ReentrantMode
from ckpt_surgery.runtime.selective.kept_results import KeptResults
from ckpt_surgery.runtime.self_check.check import SEES_SAVED_TENSORS, SelfCheck
from ckpt_surgery.runtime.self_check.schedule import CheckSchedule
from ckpt_surgery.runtime.tools.containers import tensors
from ckpt_surgery.runtime.tools.tensors import is_parameter, versions


class Computation:
    """One call of `forward`, which runs `block`: `run` it with `tensors` for its results, and later once more."""

    __slots__ = ("_arguments", "_call", "_check", "_kept", "_mode", "_recomputed")

    def __init__(
        self,
        block: nn.Module,
        forward: Callable[..., Any],
        signature: BlockSignature,
        state: BlockState,
        arguments: Arguments,
        schedule: CheckSchedule,
        kept: KeptResults | None = None,
    ) -> None:
        self._call = RecordedCall(block, forward, signature, state, arguments)
        self._check = SelfCheck(signature.place, block) if schedule.due(self._call.tensors) else None
        self._recomputed = schedule.recomputed
        self._kept = kept
        if kept is not None and self._check is not None:
            kept.show = self._check.given
        self._arguments: Arguments | None = arguments  # until the first run
        self._mode: RecomputeMode | None = None  # from the first run on

    @property
    def tensors(self) -> list[Tensor]:
        """The gradient tensors of the call, each once, in the order of the arguments; none after the first run."""
        return self._call.tensors

    @property
    def checked(self) -> bool:
        """Whether the recompute of this call is held against its forward."""
        return self._check is not None

    def run(self, *given: Tensor) -> tuple[Tensor, ...]:
        """The tensors that the block makes of `given`, which stand in for `tensors`.

        Raises SurgeryError where an argument is not what it was, or hides gradients that would get lost.
        """
        if self._mode is not None:
            self._recomputed()
            return self._run_again(self._mode, given)
        arguments, self._arguments = self._arguments, None
        assert arguments is not None
        self._call.tensors = []
        before = versions(given)
        self._mode = self._mode_of_first_run()
        try:
            return self._mode.first(arguments, given)
        finally:
            self._refuse_written(arguments, given, before)

    def _mode_of_first_run(self) -> RecomputeMode:
        if torch.is_grad_enabled():
            return NonReentrantMode(self._call, self._check, self._kept)
        if self._kept is not None:
            raise SurgeryError(
                f"{self._call.place} is checkpointed by a function with use_reentrant=True, and save needs "
                "use_reentrant=False: give that, or leave out save"
            )
        return ReentrantMode(self._call, self._check)

    def _refuse_written(self, arguments: Arguments, given: tuple[Tensor, ...], before: Sequence[int]) -> None:
        now = versions(given)
        if now != before:
            written = next(tensor for tensor, old, new in zip(given, before, now, strict=True) if old != new)
            name = _name_of(written, self._call.signature.named(*arguments))
            raise SurgeryError(
                f"{self._call.place} cannot be recomputed: it modified its argument {name} in place; leave the "
                "block out, or give it a copy"
            )

    def _run_again(self, mode: RecomputeMode, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        try:
            return mode.again(given)
        except (SurgeryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            if type(error).__module__ == checkpoint.__name__:  # how torch ends a recompute
                raise
            raise SurgeryError(
                f"the recompute of {self._call.place} failed where its forward did not "
                f"({type(error).__name__}: {error}): it depends on something that has changed since; keep that as it "
                "was until the backward, or leave the block out"
            ) from error

    def output(self, results: tuple[Tensor, ...]) -> Any:
        """What the block returned, made of what the checkpointing function made of the first run's results.

        To be called once, after the first run.
        """
        assert self._mode is not None
        return self._mode.output(results)


class NonReentrantMode(RecomputeMode):
    """The first pass runs with gradients, so that autograd knows what the block made of what."""

    __slots__ = ("_kept", "_output", "_parameters")

    def __init__(self, call: RecordedCall, check: SelfCheck | None, kept: KeptResults | None) -> None:
        super().__init__(call, check)
        self._kept = kept
        self._parameters: dict[int, Tensor] = {}  # those given, and views of them, by their places

    def first(self, arguments: Arguments, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        args, kwargs = arguments
        self._parameters = {place: tensor for place, tensor in enumerate(given) if is_parameter(tensor)}
        self._call.begin(watching=self._check is not None)
        checking = self._check.forward(saved=SEES_SAVED_TENSORS) if self._check is not None else NOTHING
        with checking, self._kept.forward() if self._kept is not None else NOTHING:
            self._output = self._call.forward(*args, **kwargs)
        self._call.end()
        results = (self._output,) if isinstance(self._output, Tensor) else tuple(tensors(self._output))
        if self._kept is not None:
            self._kept.end(results)
        if self._check is not None and not SEES_SAVED_TENSORS:
            self._check.results(results)
        return results

    def again(self, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        # a gradient or a hook inside is not for those outside; the self-check knows parameters by what they are, and
        # hooks for saved tensors, as those of offload, give tensors that are none
        given = tuple([self._parameters.get(place, without_graph(each)) for place, each in enumerate(given)])

        def forward(stand_ins: Mapping[int, Any]) -> Any:
            args, kwargs = self._call.rebuilt(given, stand_ins)
            with self._kept.recompute() if self._kept is not None else NOTHING:
                return self._call.forward(*args, **kwargs)  # torch keeps what it wants on the way

        def run() -> tuple[Tensor, ...]:
            output = self._call.run_as_at_entry(forward, trusting=False)
            return () if SEES_SAVED_TENSORS else tuple(tensors(output))

        if self._check is None:
            self._call.run_as_at_entry(forward, trusting=True)
        else:
            self._check.recompute(run, run)
        return ()

    def output(self, results: tuple[Tensor, ...]) -> Any:
        output, self._output = self._output, None
        return output


def _name_of(tensor: Tensor, arguments: Iterable[tuple[str, Any]]) -> str:
    return next((name for name, value in arguments if any(part is tensor for part in tensors(value))), "")
