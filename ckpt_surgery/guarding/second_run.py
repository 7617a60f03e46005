"""Whether a model runs a second time in the backward of a step, as under a loss that embeds inputs again in a hook.

Forwards and recomputes cannot be told apart then, and nothing is said of the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from ckpt_surgery.guarding.steps import in_backward
from ckpt_surgery.runtime.tools.model_hook import ModelHook


class SecondRun:
    """Watches one step of `model`, until `remove`; `seen` then says whether it ran a second time.

    A block runs before the backward has reached the model's results, or a part of the model that holds blocks runs
    after that.
    """

    def __init__(self, model: nn.Module, blocks: Mapping[str, nn.Module]) -> None:
        self.seen = False
        self._in_backward = False
        parts = {name.partition(".")[0] for name in blocks if "." in name}
        self._handles = [block.register_forward_pre_hook(ModelHook(self._enter)) for block in blocks.values()]
        enter_part = ModelHook(self._enter_part)
        self._handles += [model.get_submodule(name).register_forward_pre_hook(enter_part) for name in parts]

    def start_backward(self) -> None:
        """The backward has reached the model's results."""
        self._in_backward = True

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _enter(self, *_: Any) -> None:
        self.seen |= not self._in_backward and in_backward()

    def _enter_part(self, *_: Any) -> None:
        self.seen |= self._in_backward
