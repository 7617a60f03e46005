"""The proof of blocks in common loops: mixed precision, scaled losses, accumulated gradients, adapters.

In each, a healthy training is proved silently, and a block that drifts between its runs is named.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

import peft
import torch
from transformers import DynamicCache

from ckpt_surgery import guard, wrap_blocks
from ckpt_surgery.guarding.faults import GuardFaultKind
from ckpt_surgery.guarding.proof import ProofStatus
from ckpt_surgery.guarding.report import GuardReport
from ckpt_surgery.measure.switch import switch_checkpointing
from tests.zoo.tiny_models import llama, tokens

pytestmark = [pytest.mark.both, pytest.mark.torch]

LAYERS = 3
DRIFTING = 1
"""The layer, if any, that computes something else in each run."""

Loop = Callable[[Any, torch.optim.Optimizer], None]


def loss_of(model: Any) -> torch.Tensor:
    loss: torch.Tensor = model(**tokens()).loss
    return loss


def autocast(model: Any, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(LAYERS):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()


def scaled(model: Any, optimizer: torch.optim.Optimizer) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for _ in range(LAYERS):
        with torch.autocast("cpu", torch.float16):
            loss = loss_of(model)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def accumulated(model: Any, optimizer: torch.optim.Optimizer) -> None:
    for step in range(LAYERS):
        (loss_of(model) / 2).backward()  # type: ignore[no-untyped-call]
        if step % 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)


def whole(model: Any) -> Any:
    return model


def adapted(model: Any) -> Any:
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    return peft.get_peft_model(model, config)


WAYS: dict[str, tuple[Loop, Callable[[Any], Any]]] = {
    "a scaler": (scaled, whole),
    "accumulation": (accumulated, whole),
    "adapters under autocast": (autocast, adapted),
}
every_way = pytest.mark.parametrize("way", WAYS)
both_modes = pytest.mark.parametrize("mode", ["reentrant", "non_reentrant"])


def trained(way: str, mode: Any, drifting: bool) -> GuardReport:
    loop, change = WAYS[way]
    base = llama(LAYERS, use_cache=False).float().train()
    if drifting:
        factors = itertools.count(1)
        mlp = base.model.layers[DRIFTING].mlp
        vars(mlp)["forward"] = lambda hidden: type(mlp).forward(mlp, hidden) * next(factors)
    model = change(base)
    switch_checkpointing(base, mode)
    if change is adapted:
        base.enable_input_require_grads()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.01)
    with guard(model, on_fault="collect", patience=2) as watching:
        loop(model, optimizer)
        return watching.report()


@both_modes
@every_way
def test_a_healthy_training_is_proved_and_nothing_is_said(way: str, mode: str) -> None:
    report = trained(way, mode, drifting=False)
    assert report.faults == ()
    assert [row.proof.status for row in report.blocks] == [ProofStatus.PROVED] * LAYERS
    assert all(row.proof.compared > 1 for row in report.blocks)


@both_modes
@every_way
def test_a_block_that_drifts_is_named(way: str, mode: str) -> None:
    report = trained(way, mode, drifting=True)
    (fault,) = report.faults
    assert fault.kind is GuardFaultKind.WRONG_GRADIENTS
    assert fault.subjects[0].endswith(f"model.layers.{DRIFTING}")
    statuses = [row.proof.status for row in report.blocks]
    assert statuses == [ProofStatus.WRONG if place == DRIFTING else ProofStatus.PROVED for place in range(LAYERS)]


def test_a_step_behind_a_forward_without_its_own_backward_is_not_judged() -> None:
    model, batch = llama(), tokens()
    wrap_blocks(model)
    with guard(model) as watching:
        for _ in range(2):
            cache = DynamicCache()
            model(**batch, past_key_values=cache)
            model(**batch, past_key_values=cache).loss.backward()
        report = watching.report()
        assert report.ok
        assert report.blocks[0].proof.status is ProofStatus.EARLIER_FORWARD
        for _ in report.blocks:
            model(**batch).loss.backward()
        assert watching.report().proved == len(report.blocks)
