"""A model that trains without its checkpointing switched on, and what may checkpoint it all the same."""

from __future__ import annotations

from weakref import ref

from torch import nn

from ckpt_surgery.guarding.trained_model import Trained
from ckpt_surgery.measure.own_checkpoints import checkpoint_call, is_composable, recomputing_call
from ckpt_surgery.runtime.blocks.discovery import is_layer
from ckpt_surgery.runtime.blocks.library_switch import checkpoints_in_evaluation, flags_of, has_inline_branch
from ckpt_surgery.torch_names import COMPOSABLE_CHECKPOINT

LOOKS = 3
"""In so many forwards the calls of modules are looked at for who checkpoints them."""


class WaitingModel:
    """A model whose checkpointing is not switched on. `forwards` counts those after its first."""

    def __init__(self, model: nn.Module, trained: Trained) -> None:
        self.model = ref(model)
        self.trained = trained
        self.forwards = 0
        parts = list(model.modules())
        self._flags = [(ref(module), flag) for module in parts for flag in flags_of(module)]
        self._in_evaluation = any(map(checkpoints_in_evaluation, parts))
        trained.calls_checkpoint = any(
            has_inline_branch(module) and not (is_layer(module) or flags_of(module)) for module in parts
        )

    def is_in_mode(self, model: nn.Module) -> bool:
        """Tell whether a model is in a mode in which something may checkpoint it."""
        return model.training or self._in_evaluation or self.trained.checkpoints_itself

    def asks(self) -> bool:
        """Tell whether checkpointing has been switched on since."""
        return any(getattr(module(), flag, False) for module, flag in self._flags)

    def enter(self) -> None:
        """Look whether torch's checkpoint function runs the entered module, until enough was seen."""
        if self.forwards < LOOKS and not self.trained.place:
            self.trained.place = checkpoint_call()
            self.trained.checkpoints_itself |= bool(self.trained.place)

    def enter_again(self) -> None:
        """Note that the model checkpoints by itself, since it runs in the backward; find the call that does it."""
        trained, model = self.trained, self.model()
        trained.checkpoints_itself = True
        if not trained.place and model is not None:
            composable = any(map(is_composable, model.modules()))
            trained.place = COMPOSABLE_CHECKPOINT if composable else recomputing_call()
