"""The setup that all runs of one examination share: the model, its inputs and blocks, and the options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ckpt_surgery.measure.ranks import unwrapped
from ckpt_surgery.measure.record import RunRecord
from ckpt_surgery.measure.results import Level, Mode
from ckpt_surgery.measure.step import run_step
from ckpt_surgery.measure.switch import Switch
from ckpt_surgery.runtime.blocks.discovery import Block


@dataclass(frozen=True, slots=True, eq=False)
class Setup:
    """A model as given, the inputs of its step, its blocks by name, and the options of `verify`."""

    given: nn.Module
    inputs: Mapping[str, Any]
    blocks: Mapping[str, Block]
    loss: Callable[[Any], Tensor] | None
    levels: tuple[Level, ...]
    seed: int
    tolerance: float | None
    switch: Switch
    own_switch: bool = False
    """Whether the caller gave the switch, so that it has to switch something on."""

    @property
    def model(self) -> nn.Module:
        """The model itself, without a wrapper of torch around it."""
        return unwrapped(self.given)

    @property
    def name(self) -> str:
        """The model's class."""
        return type(self.model).__name__

    def run(
        self, mode: Mode | None, *, rounding_seed: int = 0, through: nn.Module | None = None, **more: Any
    ) -> RunRecord:
        """Run one step in this mode, or without checkpointing (see `run_step`); inputs in `more` replace those given.

        `through` is a module with the model's parameters that runs in its place; blocks are not counted then.
        """
        return run_step(
            self.model if through is None else through,
            {**self.inputs, **more},
            blocks={name: block.module for name, block in self.blocks.items()} if through is None else {},
            checkpointing=mode,
            seed=self.seed,
            loss=self.loss,
            rounding_seed=rounding_seed,
            switch=self.switch,
        )
