"""Functions on a model run on its copy, or explain says that they cannot; the model stays as it was."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn

from ckpt_surgery import PlanningError, explain, plan

pytestmark = [pytest.mark.both, pytest.mark.torch]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = hidden + self.down(self.up(hidden).relu())
        return result


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, hidden: Tensor) -> Tensor:
        for block in self.blocks:
            hidden = block(hidden)
        return hidden.square().sum()


class ReadsWeights(Model):
    """A model that does not run on shapes."""

    def forward(self, hidden: Tensor) -> Tensor:
        first: Any = self.blocks[0]
        if (first.up.weight > 100).any():
            return hidden.sum()
        return super().forward(hidden)


def around(inner: Callable[..., Any], times: int = 1) -> Callable[..., Any]:
    def outer(*args: Any, **options: Any) -> Any:
        return inner(*args, **options)

    return around(outer, times - 1) if times > 1 else outer


def by_default(block: Any) -> Callable[..., Any]:
    return lambda hidden, own=block: Block.forward(own, hidden)


FORWARDS: dict[str, Callable[[Any], Any]] = {
    "closure": lambda block: around(block.forward),
    "closures": lambda block: around(block.forward, 3),
    "default": by_default,
    "partial": lambda block: partial(around(Block.forward), block),
    "method": lambda block: MethodType(lambda own, hidden: Block.forward(own, hidden), block),
}
INPUTS = {"hidden": torch.ones(4, 8)}


def untouched(model: nn.Module) -> bool:
    return all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("of", [Model, ReadsWeights])
@pytest.mark.parametrize("name", FORWARDS)
def test_a_forward_that_was_replaced_runs_in_the_copy(name: str, of: type[Model]) -> None:
    patched, plain = of(), of()
    for block in patched.blocks:
        block.forward = FORWARDS[name](block)
    ours, theirs = explain(patched, INPUTS), explain(plain, INPUTS)
    assert (ours.kept_bytes, ours.peak_bytes) == (theirs.kept_bytes, theirs.peak_bytes)
    assert ours.gradient_bytes == theirs.gradient_bytes == 4 * sum(p.numel() for p in plain.parameters())
    assert untouched(patched)


def test_a_hook_and_a_loss_use_the_copy() -> None:
    model = Model()
    first: Any = model.blocks[0]
    model.register_forward_hook(lambda _, args, output: output + first.up.weight.sum())
    told = explain(model, INPUTS, loss=lambda output: output + first.down.weight.norm())
    assert told.gradient_bytes == explain(Model(), INPUTS).gradient_bytes
    assert untouched(model)


@pytest.mark.parametrize("of", [Model, ReadsWeights])
def test_what_no_copy_can_follow_is_refused_and_leaves_gradients_alone(of: type[Model]) -> None:
    model = of()
    blocks = list(model.blocks)
    for number, block in enumerate(model.blocks):
        block.forward = lambda hidden, number=number: Block.forward(blocks[number], hidden)  # type: ignore[arg-type]
    before = blocks[1].up.weight.grad = torch.ones(16, 8)  # type: ignore[union-attr]
    for function in (explain, partial(plan, memory="1GB")):
        with pytest.raises(PlanningError, match="uses parameters of the model itself") as raised:
            function(model, INPUTS)
    if of is Model:
        assert "test_model_copy.py, line" in str(raised.value)
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert len(grads) == 1
    assert grads[0] is before
    assert torch.equal(before, torch.ones(16, 8))
