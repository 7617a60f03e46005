"""Saved operators in a plan: which are offered, what they change, and that such a plan keeps its promise."""

from __future__ import annotations

from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaForCausalLM

from ckpt_surgery import explain, plan, wrap_blocks
from ckpt_surgery.planning.choices import PlanChoice
from ckpt_surgery.planning.devices import Device
from ckpt_surgery.planning.metered_steps import StepCosts, StepMoments
from ckpt_surgery.planning.mixtures import BlockSaving, ChangedSteps, Mixtures, names_for
from ckpt_surgery.runtime.offload.offloader import Offloader
from ckpt_surgery.runtime.surgery import checkpointing
from ckpt_surgery.runtime.surgery.surgery import surgeries_in
from tests.planning.test_plan import checked
from tests.runtime.transports import Recorded
from tests.zoo.tiny_models import llama, llama_config, tokens

pytestmark = [pytest.mark.torch, pytest.mark.slow]

BLOCKS = 2


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


def without_cache() -> Any:
    """Build a small Llama that fills no cache and whose logits are the peak."""
    torch.manual_seed(0)
    config = llama_config(BLOCKS, use_cache=False)
    config.vocab_size = 1000
    return LlamaForCausalLM(config).double().train()


NAMES = tuple(f"model.layers.{place}" for place in range(BLOCKS))
STACKS = {"model.layers": NAMES}
WAYS: tuple[tuple[str, ...] | None, ...] = (
    (),
    ("attention",),
    ("matmul:2",),
    ("attention", "matmul:2"),
    ("matmul",),
    ("attention", "matmul"),
    None,
)
"""A block's choices, by the bytes they keep; None leaves it plain."""
Taken = tuple[tuple[str, ...] | None, ...]


def choice_of(taken: Taken) -> PlanChoice:
    return PlanChoice(STACKS, {name: saved for name, saved in zip(NAMES, taken, strict=True) if saved is not None})


def taken_by(choice: PlanChoice) -> Taken:
    return tuple(choice.checkpointed.get(name) for name in NAMES)


def trained(taken: Taken) -> tuple[int, int, float]:
    """Take a step with blocks that do this; return the bytes kept, the peak and the time."""
    model = without_cache()
    if set(taken) != {None}:
        choice_of(taken).apply(model)
    told = explain(model, tokens(64), optimizer="adamw", device="H100")
    return told.kept_bytes, told.peak_bytes, told.seconds


def test_no_other_choice_is_faster_by_trying_all() -> None:
    tried = {taken: trained(taken) for taken in combinations_with_replacement(WAYS, BLOCKS)}
    least = min(time for _, _, time in tried.values())
    chosen = set()
    for budget in ((("attention",), None), ((), ("attention", "matmul")), ((), ())):
        memory = tried[budget][1]
        fitting = [time for _, peak, time in tried.values() if peak <= memory]
        made = plan(without_cache(), tokens(64), memory, offload=False, changes=False)
        kept, peak, time = tried[taken_by(made.chosen.choice)]
        assert (kept, peak) == (made.chosen.kept_bytes, made.chosen.peak_bytes)
        assert time == pytest.approx(min(fitting), rel=1e-9), "no other is faster"
        assert made.chosen.extra_seconds == pytest.approx(time - least, rel=1e-6, abs=1e-12)
        chosen.add(taken_by(made.chosen.choice))
        for row in made.front:
            _, peak, time = tried[taken_by(row.choice)]
            assert row.peak_bytes == pytest.approx(peak, rel=0.01), "also where it was put together"
            assert row.extra_seconds == pytest.approx(time - least, rel=0.01, abs=1e-12)
    assert len(chosen) > 1, "and not the same every time"
    assert any(len(set(taken)) > 1 for taken in chosen), "nor is it the same in each block"


@pytest.mark.parametrize("taken", [((), ("attention", "matmul")), (("attention",), ("attention", "matmul:2"))])
def test_a_plan_that_saves_keeps_what_it_promised(taken: Taken) -> None:
    model, inputs = without_cache(), tokens(64)
    _, memory, _ = trained(taken)
    made = plan(model, inputs, memory, offload=False, changes=False)
    assert taken_by(made.chosen.choice) == taken
    exec(made.code, {"model": model})
    (surgery,) = surgeries_in(model)
    told = explain(model, inputs)
    assert told.kept_bytes == made.chosen.kept_bytes
    assert set(told.saved) == {name for saved in taken for name in saved or ()}
    assert 0 < sum(told.saved.values()) < told.kept_bytes
    assert "of that by save" in str(told)
    surgery.undo()
    checked(made, model, inputs)


def device_with_link(folder: Path, link: float) -> str:
    file = folder / f"{link}.toml"
    file.write_text(f'name = "own"\nflops = 1e12\nbandwidth = 1e12\nmemory = 1\nlink = {link}\nsource = "a test"')
    return str(file)


def test_what_is_kept_may_go_to_host_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        checkpointing, "_offloader", lambda options: Offloader(Recorded()) if options.offload else None
    )
    model, inputs = llama(3), tokens(64)
    model.config.use_cache = False
    with wrap_blocks(model, offload="cpu"):
        memory = explain(model, inputs, optimizer="adamw").peak_bytes
    made = plan(model, inputs, int(1.05 * memory), changes=False, device=device_with_link(tmp_path, 1e15))
    assert made.code.endswith("save_offload=True)")
    assert "all offloaded" in made.chosen.choice.name
    checked(made, model, inputs)


def step_of(moments: StepMoments, **values: Any) -> StepCosts:
    known = {"kept": {}, "block_seconds": {}, "recomputed": {}, **values}
    return StepCosts(kept_bytes=0, seconds=0.0, operators=frozenset(), moments=moments, made=frozenset(), **known)


@pytest.mark.parametrize(
    ("save_offload", "seconds"),
    [
        (None, {(): 3.0, ("norm",): 2.0}),
        (False, {(): 3.0 + 4.0 + 0.0, ("norm",): 2.0 + 4.0 + 1.0}),
        (True, {(): 3.0 + 4.0 + 0.0, ("norm",): 2.0 + 6.0 + 3.0}),
    ],
)
def test_a_block_waits_for_what_takes_longer_to_move_than_to_compute(
    save_offload: bool | None, seconds: dict[tuple[str, ...], float]
) -> None:
    # A forward of 1 s, 3 s of recompute of which 1 s is spared, and 50 bytes a block at 10 bytes a second.
    moments = StepMoments(0, 0, {"a": 0})
    plain = step_of(moments, block_seconds={"a": 1.0})
    wrapped = step_of(moments, kept={"a": 50}, recomputed={"a": 3.0})
    device = Device("own", 1.0, 1.0, 1, 10.0, "a test")
    host = None if save_offload is None else wrapped
    saving = BlockSaving(("norm",), 20, 0, 1.0, moved=20 if save_offload else 0)
    changed = ChangedSteps(PlanChoice(), plain, wrapped, 0.0)
    mixtures = Mixtures(plain, wrapped, changed, {"a": [saving]}, device, host, bool(save_offload))
    assert {names: costs.seconds for names, costs in mixtures.alternatives["a"][1:]} == seconds


class Layer(nn.Module):
    """A layer that writes a product's result in place."""

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
    assert not any(row.choice.saved for row in made.front)
    assert "writes that in place afterwards" in made.unavailable["matmul"]


def bounds_of(model: nn.Module, inputs: Tensor) -> tuple[int, int]:
    most = explain(model, inputs, optimizer="adamw", device="H100").peak_bytes
    with wrap_blocks(model):
        return explain(model, inputs, optimizer="adamw", device="H100").peak_bytes, most
