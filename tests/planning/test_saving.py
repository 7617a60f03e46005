"""Saved operators in a plan: which are offered, what they change, and that a plan with them keeps its promise."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn
from torch.nn import functional

from ckpt_surgery import explain, plan, wrap_blocks
from ckpt_surgery.planning.saving import Saving, combined, names_for
from tests.planning.test_plan import checked
from tests.zoo.tiny_models import llama, tokens

pytestmark = [pytest.mark.both, pytest.mark.torch]

BLOCKS = 3
OFFERED = ("attention", "matmul:2", "matmul")


@pytest.mark.parametrize(
    ("operators", "expected"),
    [
        (["aten.mm", "aten.add"], ["matmul:2", "matmul"]),
        (["aten._scaled_dot_product_flash_attention_for_cpu"], ["attention"]),
        (["aten._softmax", "aten.bmm"], ["attention"]),
        (["aten.convolution", "aten.native_batch_norm"], ["conv", "norm"]),
        (["aten.add", "aten.topk"], []),
    ],
)
def test_what_blocks_run_is_offered(operators: list[str], expected: list[str]) -> None:
    assert names_for(operators) == expected


def test_names_add_up_and_exclude_each_other() -> None:
    every = [Saving((name,), {"a": 10**at}, {"a": float(at)}, {"a": at}) for at, name in enumerate(OFFERED)]
    found = {saving.names: (saving.bytes, saving.seconds, saving.own) for saving in combined(every)}
    assert found == {
        (): ({}, {}, {}),
        ("matmul:2",): ({"a": 10}, {"a": 1.0}, {"a": 1}),
        ("matmul",): ({"a": 100}, {"a": 2.0}, {"a": 2}),
        ("attention",): ({"a": 1}, {"a": 0.0}, {"a": 0}),
        ("attention", "matmul:2"): ({"a": 11}, {"a": 1.0}, {"a": 1}),
        ("attention", "matmul"): ({"a": 101}, {"a": 2.0}, {"a": 2}),
    }


def without_cache() -> Any:
    """A small Llama; plain blocks beside checkpointed ones fill no cache, and those of a plain model would."""
    model = llama(BLOCKS)
    model.config.use_cache = False
    return model


def trained(saved: tuple[str, ...], first: int) -> tuple[int, int, float]:
    """What a step keeps, its peak and its time, with so many blocks checkpointed, by a step of its own."""
    model, inputs = without_cache(), tokens(64)
    if first:
        wrap_blocks(model, first=first, save=saved or None)
    told = explain(model, inputs, optimizer="adamw", device="H100")
    return told.kept_bytes, told.peak_bytes, told.seconds


def test_no_other_choice_is_faster_by_trying_all() -> None:
    names: list[tuple[str, ...]] = [(), *((name,) for name in OFFERED)]
    names += [("attention", name) for name in OFFERED[1:]]
    tried = {(saved, first): trained(saved, first) for saved, first in product(names, range(1, BLOCKS + 1))}
    tried |= dict.fromkeys([(saved, 0) for saved in names], trained((), 0))
    least = tried[(), 0][2]
    chosen = set()
    for budget in ((("attention", "matmul:2"), 2), (("attention", "matmul"), 1)):
        memory = tried[budget][1]
        fitting = [time for _, peak, time in tried.values() if peak <= memory]
        made = plan(without_cache(), tokens(64), memory, offload=False, changes=False)
        kept, peak, time = tried[made.chosen.choice.save, sum(made.chosen.choice.first.values())]
        assert (kept, peak) == (made.chosen.kept_bytes, made.chosen.peak_bytes)
        assert time == pytest.approx(min(fitting), rel=1e-9), "no other is faster"
        assert made.chosen.extra_seconds == pytest.approx(time - least, rel=1e-6, abs=1e-12)
        chosen.add(made.chosen.choice.save)
        for row in made.front:
            _, peak, time = tried[row.choice.save, sum(row.choice.first.values())]
            assert row.peak_bytes == pytest.approx(peak, rel=0.01), "also where it was put together"
            assert row.extra_seconds == pytest.approx(time - least, rel=0.01, abs=1e-12)
    assert len(chosen) > 1, "and not the same every time"


@pytest.mark.parametrize(("saved", "first"), [(("attention", "matmul:2"), 2), (("attention", "matmul"), 1)])
def test_a_plan_that_saves_keeps_what_it_promised(saved: tuple[str, ...], first: int) -> None:
    model, inputs = without_cache(), tokens(64)
    _, memory, _ = trained(saved, first)
    made = plan(model, inputs, memory, offload=False, changes=False)
    assert made.chosen.choice.save == saved
    assert f"save={list(made.chosen.choice.save)!r}" in made.code
    assert " saved" in made.chosen.choice.name(made.blocks)
    surgery = eval(made.code, {"wrap_blocks": wrap_blocks, "model": model})
    told = explain(model, inputs)
    assert told.kept_bytes == made.chosen.kept_bytes
    assert set(told.saved) == set(made.chosen.choice.save)
    assert 0 < sum(told.saved.values()) < told.kept_bytes
    assert "of that by save" in str(told)
    surgery.undo()
    checked(made, model, inputs)


class Layer(nn.Module):
    """Writes what a product made in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return functional.silu(self.linear(hidden).mul_(2.0)) + hidden


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, hidden: Tensor) -> Tensor:
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


def test_what_cannot_be_saved_is_no_choice_and_says_why() -> None:
    inputs: Any = torch.rand(64, 16)
    least, most = bounds_of(Stack(), inputs)
    made = plan(Stack(), inputs, (least + most) // 2, offload=False, changes=False)
    assert made.chosen.choice.save == ()
    assert "writes that in place afterwards" in made.unavailable["matmul"]


def bounds_of(model: nn.Module, inputs: Tensor) -> tuple[int, int]:
    most = explain(model, inputs, optimizer="adamw").peak_bytes
    with wrap_blocks(model):
        return explain(model, inputs, optimizer="adamw").peak_bytes, most
