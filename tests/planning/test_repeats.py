"""Steps with a few of many equal blocks give exactly what all of them allocate, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn
from transformers import GptOssConfig, GptOssForCausalLM, T5Config, T5ForConditionalGeneration

from ckpt_surgery import explain, plan, wrap_blocks
from ckpt_surgery.planning.allocations import StepAllocations
from ckpt_surgery.planning.explain import metered, on_host_without_data
from ckpt_surgery.planning.repeats import RepeatedBlocks
from ckpt_surgery.planning.shapes import ShapesOnly, shapes_of
from ckpt_surgery.runtime.blocks.discovery import nearest
from tests.zoo.tiny_models import llama, tokens

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def gpt_oss() -> nn.Module:
    """Build a model with alternating sliding and full attention, and experts."""
    sizes = {"hidden_size": 32, "intermediate_size": 32, "vocab_size": 64, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 4, "sliding_window": 4}
    model: nn.Module = GptOssForCausalLM(GptOssConfig(num_hidden_layers=14, **sizes, **heads))
    return model


def t5() -> nn.Module:
    """Build a model of two stacks, of which the second uses the first's output."""
    sizes = {"d_model": 32, "d_ff": 32, "d_kv": 16, "num_heads": 2, "vocab_size": 64}
    model: nn.Module = T5ForConditionalGeneration(
        T5Config(num_layers=14, num_decoder_layers=13, decoder_start_token_id=0, **sizes)
    )
    return model


@dataclass
class Case:
    """A model without data, and how its steps are metered."""

    model: nn.Module
    run: Callable[[], StepAllocations]
    stacks: dict[str, tuple[str, ...]]
    block_of: Callable[[str], str]
    plain: StepAllocations

    def repeats(self, reach: int) -> RepeatedBlocks:
        return RepeatedBlocks(self.model, self.stacks, self.block_of, self.plain, reach)


def case(model: nn.Module, inputs: dict[str, Tensor]) -> Case:
    shapes = ShapesOnly()
    copied = shapes_of(model.train(), shapes)

    def run() -> StepAllocations:
        return metered(copied, inputs, shapes)[0]

    with wrap_blocks(copied, self_check="never") as surgery:
        stacks = {stack.name: tuple(block.name for block in stack.blocks) for stack in surgery.stacks if stack.wanted}
    names = frozenset(name for some in stacks.values() for name in some)
    return Case(copied, run, stacks, cache(partial(nearest, names=names)), run())


@contextmanager
def wrapped(model: nn.Module, options: Any) -> Iterator[None]:
    if options is None:
        yield
        return
    with wrap_blocks(model, self_check="never", **options):
        on_host_without_data(model)
        yield


MODELS: dict[str, Callable[[], nn.Module]] = {
    "llama": partial(llama, 14),
    "gpt_oss": gpt_oss,
    "t5": t5,
}
ALL_OFFLOADED = {"offload": "cpu", "save": "attention", "save_offload": True}


@cache
def of_many(name: str) -> Case:
    return case(MODELS[name](), tokens(8))


@pytest.mark.parametrize(
    ("name", "options", "reach"),
    [
        ("llama", {}, 1),
        ("llama", {"save": "matmul"}, 1),
        ("llama", ALL_OFFLOADED, 4),
        ("gpt_oss", ALL_OFFLOADED, 2),  # of units of two blocks
        ("t5", {}, 1),
        ("t5", {"offload": "cpu"}, 4),
    ],
    ids=str,
)
def test_few_blocks_say_what_all_of_them_allocate(name: str, options: Any, reach: int) -> None:
    made = of_many(name)
    repeats = made.repeats(reach)
    before = list(made.model.modules())
    with wrapped(made.model, options):
        if options and "save" in options:
            made.run()  # in the first step a policy looks at every operator, which adds some
        whole = made.run()
        told = repeats.step(made.run)
    assert all(now is then for now, then in zip(made.model.modules(), before, strict=True))
    assert told is not None
    assert told.is_same_step(whole)
    assert told.operators == whole.operators


def test_blocks_that_differ_from_their_representative_are_seen() -> None:
    made = of_many("llama")
    repeats = made.repeats(1)
    with wrapped(made.model, {"first": 9}):
        told = repeats.step(made.run)
        assert told is not None
        assert not told.is_same_step(made.run())


def test_what_differs_in_one_allocation_is_not_the_same() -> None:
    step = of_many("llama").plain
    assert step.is_same_step(replace(step, allocations=step.allocations[::-1]))
    first = step.allocations[0]
    for other in (replace(first, bytes=first.bytes + 1), replace(first, died=first.died + 1)):
        assert not step.is_same_step(replace(step, allocations=(other, *step.allocations[1:])))
    assert not step.is_same_step(replace(step, work=step.work[1:]))
    assert not step.is_same_step(replace(step, operators=step.operators + 1))


class Block(nn.Module):
    """A block that may widen what it computes."""

    def __init__(self, wide: int = 1) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.wide = float(wide)

    def forward(self, hidden: Tensor) -> Tensor:
        inner: Tensor = self.first(hidden).repeat(1, int(self.wide))
        result: Tensor = hidden + self.second(inner.view(len(inner), -1, 8).sum(1))
        return result


class Blocks(nn.Module):
    """A row of blocks; `by_number` needs each of them, `counted` repeats the result once for each."""

    def __init__(self, blocks: Iterable[nn.Module], *, by_number: bool = False, counted: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(blocks)
        self.by_number, self.counted, self.number = by_number, counted, len(self.layers)

    def forward(self, hidden: Tensor) -> Tensor:
        for number in range(self.number if self.by_number else 0):
            hidden = self.layers[number](hidden)
        for layer in [] if self.by_number else self.layers:
            hidden = layer(hidden)
        scale = len(self.layers) if self.counted else 1
        return hidden.repeat(scale, 1)


def rows() -> dict[str, Tensor]:
    return {"hidden": torch.zeros(4, 8)}


def test_a_model_that_needs_each_block_says_nothing() -> None:
    made = case(Blocks([Block() for _ in range(14)], by_number=True), rows())
    repeats = made.repeats(1)
    assert repeats.most_left_out
    assert repeats.step(made.run) is None
    assert not repeats.proved(made.plain, made.run)


def test_what_depends_on_the_number_of_blocks_is_no_proof() -> None:
    made = case(Blocks([Block() for _ in range(14)], counted=True), rows())
    repeats = made.repeats(1)
    assert repeats.step(made.run) is not None
    assert not repeats.proved(made.plain, made.run)


def test_a_block_that_is_not_alike_is_not_left_out() -> None:
    blocks = [Block(3 if number == 5 else 1) for number in range(30)]
    made = case(Blocks(blocks), rows())
    repeats = made.repeats(1)
    assert repeats.most_left_out
    assert repeats.proved(made.plain, made.run)
    alone = case(Blocks([Block(number % 5 + 1 if number % 2 else 9 + number) for number in range(14)]), rows())
    assert not alone.repeats(1).most_left_out


def test_a_plan_is_the_same_as_from_steps_with_all_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = llama(10), tokens(8)
    plain = explain(model, inputs, optimizer="adamw", device="H100")
    budget = plain.peak_bytes - (plain.peak_bytes - plain.workspace_bytes) // 4
    steps: list[StepAllocations | None] = []

    def noted(*given: Any) -> StepAllocations | None:
        steps.append(step(*given))
        return steps[-1]

    step = RepeatedBlocks.step
    monkeypatch.setattr(RepeatedBlocks, "step", noted)
    made = plan(model, inputs, budget, offload=False, changes=False)
    assert len(steps) > 2
    assert None not in steps
    monkeypatch.setattr(RepeatedBlocks, "proved", lambda *_: False)
    whole = plan(model, inputs, budget, offload=False, changes=False)
    assert (made.front, made.chosen, made.explanation) == (whole.front, whole.chosen, whole.explanation)
