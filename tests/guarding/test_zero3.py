"""A block whose weights are partitioned after the backward, as by ZeRO-3, is proved on the gathered ones.

DeepSpeed is faked here; `tests/integrations/test_deepspeed.py` has the real one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn

from ckpt_surgery import guard
from tests.guarding.test_guard import enable, train
from tests.measure.toys import SureLayer, model_of

pytestmark = [pytest.mark.both, pytest.mark.torch]


class Parted:
    """A partition of `model` that empties weights once their gradient exists or a block has run alone."""

    def __init__(self, model: Any) -> None:
        self.whole = {parameter: parameter.data for parameter in model.parameters()}
        self.alone = False
        for place, parameter in enumerate(self.whole):
            parameter.ds_id, parameter.ds_active_sub_modules = place, set[str]()
            parameter.ds_status = SimpleNamespace(name="NOT_AVAILABLE")
            parameter.register_post_accumulate_grad_hook(self.part)
        model.register_forward_pre_hook(lambda *_: self.gather(self.whole))
        for layer in model.layers:
            layer.register_forward_hook(self.leave)

    def leave(self, layer: nn.Module, *_: Any) -> None:
        for parameter in layer.parameters() if self.alone else ():
            self.part(parameter)

    leave.__module__ = "deepspeed.runtime"

    def part(self, parameter: Any) -> None:
        if not parameter.ds_active_sub_modules:
            parameter.data = torch.empty(0, dtype=parameter.dtype)

    def gather(self, parameters: Sequence[nn.Parameter] | dict[nn.Parameter, Any]) -> None:
        for parameter in parameters:
            parameter.data = self.whole[parameter]

    @contextmanager
    def gathered(self, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
        """Gather parameters with DeepSpeed's GatheredParameters."""
        self.gather(parameters)
        self.alone = True
        try:
            yield
        finally:
            self.alone = False
            for parameter in parameters:
                self.part(parameter)


class Scaled(SureLayer):
    """A layer that saves its weight itself for the backward, not a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((4,), 0.5))

    def forward(self, hidden_states: Tensor) -> Tensor:
        return torch.tanh(self.linear(hidden_states) * self.scale)


def test_blocks_are_proved_on_gathered_weights_that_stay_for_the_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(Scaled, Scaled)
    parted = Parted(model)
    stand_in = SimpleNamespace(zero=SimpleNamespace(GatheredParameters=parted.gathered))
    monkeypatch.setitem(sys.modules, "deepspeed", stand_in)
    enable(model)
    with guard(model) as watching:
        train(model)
        assert watching.report().proved == 2
    assert not any(parameter.ds_active_sub_modules for parameter in parted.whole)
