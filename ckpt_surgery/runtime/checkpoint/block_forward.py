"""What stands in for the `forward` of a block. It lies on the block itself, and is copied and pickled with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn

from ckpt_surgery.runtime.blocks.library_switch import FUNCTION
from ckpt_surgery.runtime.checkpoint.block_state import BlockState
from ckpt_surgery.runtime.checkpoint.call_arguments import BlockSignature
from ckpt_surgery.runtime.checkpoint.recompute import Computation
from ckpt_surgery.runtime.checkpoint.transforms import refuse_transforms
from ckpt_surgery.runtime.nested_backward import anchor
from ckpt_surgery.runtime.selective.kept_results import KeptResults
from ckpt_surgery.runtime.selective.save_policy import SavePolicy
from ckpt_surgery.runtime.self_check.schedule import CheckSchedule
from ckpt_surgery.runtime.surgery.options import SurgeryOptions


class BlockForward:
    """The `forward` of one block, as an attribute of the block itself: what was there before, checkpointed.

    `name` is the block's in the model. `original` is the forward that was on the instance before; None for that of
    the class, whichever it is at the time of a call. `replacement` is one that another library put on the instance
    later. With `fills_cache` another part of the model reads the cache that the block fills. `schedule` says which of
    its calls check themselves, and `policy` what they keep, where that is anything; with `moves_kept` that goes where
    the block's inputs go.
    """

    def __init__(
        self,
        name: str,
        block: nn.Module,
        *,
        options: SurgeryOptions,
        original: Callable[..., Any] | None,
        fills_cache: bool,
        policy: SavePolicy | None = None,
    ) -> None:
        self.name = name
        self.block = block
        self.fills_cache = fills_cache
        self.skip_frozen = options.skip_frozen
        self.policy = policy
        self.moves_kept = options.save_offload
        self.schedule = CheckSchedule(options.checks)
        self.original = original
        self.replacement: Callable[..., Any] | None = None
        self.retired = False
        self._state = BlockState(block)
        self._in_replacement = False
        self._read_signature()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_signature_of": None}

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """What runs the block without checkpointing."""
        if self.original is not None:
            return self.original
        return partial(type(self.block).forward, self.block)  # the compiler knows no methods made by hand

    @property
    def __self__(self) -> nn.Module:
        return self.block

    @property
    def place(self) -> str:
        """Which block this is, for messages."""
        return f"{type(self.block).__name__} {self.name}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the block; checkpointed while it trains with gradients and has a function that checkpoints."""
        function = vars(self.block).get(FUNCTION)
        training = self.block.training and torch.is_grad_enabled()
        if function is None or not training or self._in_replacement or self.retired:
            return self._plain()(*args, **kwargs)
        forward = self._plain()
        if torch.compiler.is_compiling():
            args, kwargs = self._signature.without_caches(*self._signature.without_use_cache(args, kwargs))
            return function(forward, *args, **kwargs)
        if self._signature_of is not self._innermost():
            self._read_signature()
        reentrant = bool(getattr(function, "reentrant", False))
        refuse_transforms(self._signature.place, reentrant=reentrant)
        call = self._signature.without_own_caches(*self._signature.without_use_cache(args, kwargs))
        kept = None
        if self.policy is not None:
            kept = KeptResults(self.policy, self.name, self.place, moves=self.moves_kept)
        computation = Computation(self.block, forward, self._signature, self._state, call, self.schedule, kept)
        given = computation.tensors
        if not given:
            example = next((p for p in self.block.parameters() if p.requires_grad), None)
            if example is None and self.skip_frozen:
                if self.policy is not None:
                    self.policy.left_out(self.name)
                return forward(*args, **kwargs)
            if example is not None:  # reentrant checkpointing is no part of the graph without one that needs gradient
                given = [torch.empty(0, device=example.device, requires_grad=True)]
        if computation.checked and reentrant:
            given = [*given, *anchor(list(self.block.parameters()))]
        results = function(partial(MethodType(_run, self.block), computation), *given)
        return computation.output(results if isinstance(results, tuple) else (results,))

    def adopt(self, forward: Callable[..., Any] | None) -> None:
        """Checkpoint what another library has put in place of this: a forward, or, with None, that of the class."""
        self.replacement = forward
        vars(self.block)["forward"] = self

    def retire(self) -> None:
        """From now on only run the original: a forward that was put over this may still call it."""
        self.retired = True
        self.replacement = None

    def _plain(self) -> Callable[..., Any]:
        """What runs the block now, without checkpointing; the original inside the replacement, which may call this."""
        return self.__wrapped__ if self.replacement is None or self._in_replacement else self._run_replacement

    def _run_replacement(self, *args: Any, **kwargs: Any) -> Any:
        self._in_replacement = True
        try:
            return cast(Callable[..., Any], self.replacement)(*args, **kwargs)
        finally:
            self._in_replacement = False

    def _read_signature(self) -> None:
        self._signature_of = self._innermost()
        forward = self.replacement or self.__wrapped__
        self._signature = BlockSignature.of(self.place, self.block, forward, fills_cache=self.fills_cache)

    def _innermost(self) -> Any:
        """The function to which the arguments of the block go."""
        return self.replacement or self.original or type(self.block).forward


def _run(block: nn.Module, computation: Computation, *given: Tensor) -> tuple[Tensor, ...]:
    """A method of the block, so that checkpointing functions that ask for `func.func.__self__` find the block."""
    return computation.run(*given)
