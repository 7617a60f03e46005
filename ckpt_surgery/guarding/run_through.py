"""Let torch's checkpoint function run blocks that a surgery already checkpoints without a second checkpoint."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch.utils.checkpoint
from torch import nn
from torch.utils.checkpoint import CheckpointFunction, noop_context_fn

from ckpt_surgery.model_patches.release_names import FUNCTION
from ckpt_surgery.runtime.checkpoint.block_forward import BlockForward
from ckpt_surgery.runtime.checkpoint.state import put_for
from ckpt_surgery.torch_names import CHECKPOINT_GENERATOR
from ckpt_surgery.undo import Undoable


class RunThrough(Undoable):
    """Makes the script's calls of torch's checkpoint function run wrapped blocks plainly, from `begin` to `undo`.

    What that function checkpoints with is replaced: a generator that runs around the block, or a function of autograd.
    """

    def __init__(self) -> None:
        self._replaced = ExitStack()
        self._begun = False

    def begin(self) -> None:
        """Replace both by functions that run wrapped blocks plainly."""
        generator: Any = getattr(torch.utils.checkpoint, CHECKPOINT_GENERATOR)
        apply: Any = CheckpointFunction.apply
        signature = inspect.signature(generator)

        def non_reentrant(function: Any, *args: Any, **kwargs: Any) -> Any:
            given = {**signature.bind(function, *args, **kwargs).arguments, "function": function}
            return (None for _ in range(1)) if self.takes(given) else generator(function, *args, **kwargs)

        def reentrant(function: Any, *args: Any) -> Any:
            return function(*args[1:]) if self.takes({"function": function}) else apply(function, *args)

        put_for(self._replaced, vars(torch.utils.checkpoint), CHECKPOINT_GENERATOR, non_reentrant)
        CheckpointFunction.apply = reentrant  # type: ignore[method-assign]
        self._replaced.callback(delattr, CheckpointFunction, "apply")
        self._begun = True

    def undo(self) -> None:
        self._replaced.close()
        self._undone = True

    def takes(self, arguments: Mapping[str, Any]) -> bool:
        """Tell whether a call runs plainly: its function is a block under a surgery, and it has no `context_fn`."""
        function = arguments.get("function")
        block = function if isinstance(function, nn.Module) else getattr(function, "__self__", None)
        forward = vars(block).get("forward") if isinstance(block, nn.Module) else None
        return (
            self._begun
            and isinstance(forward, BlockForward)
            and function in (block, forward.block.__call__, forward)
            and forward.in_mode
            and vars(forward.block).get(FUNCTION) is not None
            and arguments.get("context_fn", noop_context_fn) is noop_context_fn
        )
