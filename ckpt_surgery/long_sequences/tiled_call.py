"""Run one call of a tiled module over shards of its input, and again, shard by shard, in the backward.

`tiled` decides which modules are tiled, and undoes that.

1. Each shard is checkpointed non-reentrant and joined to the others by plain autograd. The engine adds up the
   gradients of a parameter before DistributedDataParallel, FSDP2 or a hook sees them: each sees one gradient.
2. The recompute finds the module as the first pass did, or raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import is_
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.long_sequences.token_probe import WRITES, CannotTile
from ckpt_surgery.runtime.tools.tensors import version
from ckpt_surgery.torch_names import current_graph_task_id

SEQUENCE = -2
"""The dimension that is cut into shards."""


@dataclass(frozen=True, slots=True, eq=False)
class Tiles:
    """One call of `forward`, which runs `module`, cut into `count` shards; `place` names the module in messages.

    With `wide`, gradients of bfloat16 and float16 parameters are added up over the shards in float32.
    """

    place: str
    module: nn.Module
    forward: Callable[[Tensor], Any]
    count: int
    wide: bool

    def run(self, values: Tensor) -> Tensor:
        """Return the result for `values`, (..., tokens, hidden), with the same leading shape. Raises SurgeryError."""
        least, more = divmod(values.shape[SEQUENCE], self.count)
        # one split instead of a slice for each shard, whose backward would make a tensor of the whole shape
        shards = torch.split_with_sizes(values, [least + 1] * more + [least] * (self.count - more), SEQUENCE)
        if torch.compiler.is_compiling():
            return torch.cat([checkpoint(self.forward, shard, use_reentrant=False) for shard in shards], SEQUENCE)
        if not torch.is_grad_enabled():
            return self._result(values) if self.count == 1 else self._joined(values.shape[:-1], shards)
        entry = ModuleState.of(self.module)
        sums = {
            parameter: _WideSum(parameter)
            for parameter in (self.module.parameters() if self.wide else ())
            if parameter.requires_grad and parameter.dtype in (torch.bfloat16, torch.float16)
        }
        results = []
        for shard in shards:
            taps = [total.tap() for total in sums.values()]
            results.append(checkpoint(self._checkpointed, entry, tuple(sums), shard, *taps, use_reentrant=False))
        return torch.cat(results, SEQUENCE)

    def _checkpointed(
        self, entry: ModuleState, replaced: tuple[nn.Parameter, ...], shard: Tensor, *replacements: Tensor
    ) -> Tensor:
        entry.check(self.place, self.module)
        with with_parameters(self.module, dict(zip(replaced, replacements, strict=True))):
            return self._result(shard)

    def _joined(self, shape: torch.Size, shards: tuple[Tensor, ...]) -> Tensor:
        """Write the results into one tensor, which takes less memory than a list and its concatenation."""
        whole, start = None, 0
        for shard in shards:
            result = self._result(shard)
            if whole is None:
                whole = result.new_empty((*shape, result.shape[-1]))
            whole.narrow(SEQUENCE, start, shard.shape[SEQUENCE]).copy_(result)
            start += shard.shape[SEQUENCE]
        return cast(Tensor, whole)

    def _result(self, shard: Tensor) -> Tensor:
        """Run one shard. Raises SurgeryError if the module cannot be tiled."""
        given = shard.contiguous()  # shards of several sequences are not, and modules may view them
        watched = (given, *self.module.buffers())
        before = [version(tensor) for tensor in watched]
        result = self.forward(given)
        if not isinstance(result, Tensor) or result.shape[:-1] != shard.shape[:-1]:
            what = f"shape {tuple(result.shape)}" if isinstance(result, Tensor) else f"a {type(result).__name__}"
            of = f"a shard of shape {tuple(shard.shape)}"
            raise CannotTile(self.place, f"it made {what} of {of}, and not one tensor with the same leading shape")
        if [version(tensor) for tensor in watched] != before:
            raise CannotTile(self.place, WRITES)
        return result


@dataclass(frozen=True, slots=True, eq=False)
class ModuleState:
    """What a module's result depends on besides its input, as it was when the call began."""

    tensors: tuple[Tensor, ...]
    versions: tuple[int, ...]
    training: bool

    @classmethod
    def of(cls, module: nn.Module) -> ModuleState:
        tensors = (*module.parameters(), *module.buffers())
        return cls(tensors, tuple(map(version, tensors)), module.training)

    def check(self, place: str, module: nn.Module) -> None:
        """Raise SurgeryError if a recompute would compute something else."""
        now = ModuleState.of(module)
        if now.training != self.training:
            raise SurgeryError(
                f"{place} cannot be recomputed: it was put into {'training' if now.training else 'evaluation'} mode "
                "between forward and backward; call train() and eval() after the backward"
            )
        same = len(now.tensors) == len(self.tensors) and all(map(is_, now.tensors, self.tensors))
        if not same or now.versions != self.versions:
            raise SurgeryError(
                f"{place} cannot be recomputed: a parameter or buffer of it was replaced or modified in place between "
                "forward and backward; do that after the backward"
            )


@contextmanager
def with_parameters(module: nn.Module, replacements: Mapping[Any, Tensor]) -> Iterator[None]:
    """Replace these parameters by other tensors, wherever they are in the module."""
    places = [
        (part._parameters, name, parameter)
        for part in (module.modules() if replacements else ())
        for name, parameter in part._parameters.items()
        if parameter in replacements
    ]
    for home, name, parameter in places:
        home[name] = cast(nn.Parameter, replacements[parameter])
    try:
        yield
    finally:
        for home, name, parameter in places:
            home[name] = parameter


class _WideSum:
    """The gradients of one parameter from all shards, added up in float32 on their way to it."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self._total: Tensor | None = None
        self._task = -1
        self._end: Tensor = _End.apply(self, parameter)  # type: ignore[no-untyped-call]

    def tap(self) -> Tensor:
        """Return the parameter for one shard: its gradient goes into the sum."""
        return cast(Tensor, _Tap.apply(self, self._end))  # type: ignore[no-untyped-call]

    def add(self, gradient: Tensor) -> None:
        """Add the gradient of one shard; the rest of a backward that failed is dropped."""
        task = current_graph_task_id()
        kept = self._total if self._task == task else None
        self._total, self._task = gradient.float() if kept is None else kept.add_(gradient), task

    def taken(self, dtype: torch.dtype) -> Tensor | None:
        """Return the sum, and start the next one from nothing."""
        total, self._total = self._total, None
        return None if total is None else total.to(dtype)


class _Tap(torch.autograd.Function):
    """The parameter for one shard: its gradient leaves the graph here, while `_End` waits for all of them."""

    @staticmethod
    def forward(ctx: Any, total: _WideSum, parameter: Tensor) -> Tensor:
        ctx.sum = total
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        if gradient.requires_grad:
            raise SurgeryError(
                "fp32_accumulate=True gives no second derivatives of parameters (create_graph=True): leave it False, "
                "which does"
            )
        ctx.sum.add(gradient)
        return None, None


class _End(torch.autograd.Function):
    """The parameter itself: when all shards are done, the sum comes back into the graph here."""

    @staticmethod
    def forward(ctx: Any, total: _WideSum, parameter: Tensor) -> Tensor:
        ctx.sum = total
        ctx.dtype = parameter.dtype
        ctx.set_materialize_grads(False)
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx: Any, gradient: None) -> tuple[None, Tensor | None]:
        return None, ctx.sum.taken(ctx.dtype)
