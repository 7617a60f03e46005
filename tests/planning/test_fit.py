"""`fit`: scripts that run out of memory train with it; what does not fit is said; the unpredictable trains on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from ckpt_surgery import OptionError, PlanningError
from ckpt_surgery.guarding.failed_step import optimizers_of
from ckpt_surgery.long_sequences.calls import apply_plan
from ckpt_surgery.planning.devices import DEVICES
from ckpt_surgery.planning.fit import Fit, FitTarget, fitted_to, room_for
from ckpt_surgery.static.plan_file import read_plan
from ckpt_surgery.static.results import Progress
from tests.planning.fit_scripts.runs import check_fit, python
from tests.zoo.memory_limit import MemoryLimit
from tests.zoo.tiny_models import llama, tokens

pytestmark = pytest.mark.torch


@pytest.mark.slow
@pytest.mark.parametrize(("script", "ranks"), [("loop", False), ("trainer", False), ("ranks", True)])
def test_a_script_that_runs_out_of_memory_trains_with_fit(script: str, ranks: bool, tmp_path: Path) -> None:
    check_fit(tmp_path, f"tests.planning.fit_scripts.{script}", 6_800_000, ranks=ranks)


@pytest.mark.slow
def test_where_nothing_fits_a_dry_run_says_what_would_and_fails(tmp_path: Path) -> None:
    ran = python(
        tmp_path,
        *["-m", "ckpt_surgery", "fit", "--dry-run", "--memory", "5MB", "-m", "tests.planning.fit_scripts.loop"],
    )
    assert ran.code == 1
    first, *others = (line for line in ran.output.splitlines() if line.startswith("ckpt_surgery: "))
    assert re.fullmatch(
        r"ckpt_surgery: LlamaForCausalLM, 4 x 64: nothing fits into 4\.4 MiB\. What fits: a batch of \d or a length "
        r"of \d+\. Most effect: with .* it takes [\d.]+ MiB, [\d.]+ MiB less, and fits: .+",
        first,
    )
    assert others[0].startswith("ckpt_surgery: the smallest way is: ")
    said = "\n".join(others)
    assert "with LoRA on 4 bits it takes " in said
    assert 'fits: LoraConfig(r=16, target_modules="all-linear"), BitsAndBytesConfig(load_in_4bit=True)' in said
    assert re.search(
        r"FSDP over \d cards it takes .*: accelerate launch --use_fsdp --fsdp_version 2 --num_processes \d", said
    )
    assert '"losses"' not in ran.output, "it stops before the first step"


def test_the_budget_its_margin_and_an_assumed_card_are_named() -> None:
    model, batch = llama(2), tokens(4)
    named = str(fitted_to(model, batch, FitTarget(10**9, DEVICES["4090"])))
    assert "; by the figures of 4090\n" in named
    assert "; the budget is 877 MiB, 954 MiB less a margin of 8 %\n" in named
    assumed = str(fitted_to(model, batch, FitTarget(10**9, margin=0.0)))
    assert "; seconds are those of an H100: name your card with --device\n" in assumed
    assert "; the budget is 954 MiB\n" in assumed


def test_each_step_that_is_metered_is_reported() -> None:
    told: list[tuple[str, int, int]] = []

    @contextmanager
    def progress() -> Iterator[Progress]:
        yield lambda *given: told.append(given)

    model = llama(1)
    Fit(model, FitTarget(1000), lambda _: None, progress)
    step(model, torch.optim.SGD(model.parameters(), lr=0.1), tokens(2))
    assert len(told) > 3
    assert told == [("fit: metering steps", number, 0) for number in range(1, len(told) + 1)]


def step(model: Any, optimizer: Any, batch: dict[str, Any], *, zero: bool = True) -> None:
    model(**batch).loss.backward()
    optimizer.step()
    if zero:
        optimizer.zero_grad()


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adafactor])
def test_the_prediction_is_what_steps_of_the_scripts_optimizer_take(kind: Any) -> None:
    with MemoryLimit(None) as memory:
        model = llama(2)
        optimizer = kind(model.parameters(), lr=1e-3)
        batch = tokens(8)
        fitted = fitted_to(model, batch, FitTarget(10**9, DEVICES["4090"]))
        assert fitted.optimizer.name == kind.__name__
        assert not fitted.choice.is_needed
        memory.peak_bytes = 0
        for _ in range(3):
            step(model, optimizer, batch)
    assert fitted.peak_bytes == pytest.approx(memory.peak_bytes, rel=1e-3)


def test_accumulated_gradients_are_counted_from_the_second_forward_on() -> None:
    told: list[int] = []
    model = llama(2)
    optimizer = torch.optim.AdamW(model.parameters())
    fit = Fit(model, FitTarget(10**9), lambda made: told.append(made.fitted.held_bytes if made.fitted else -1))
    for _ in range(3):
        step(model, optimizer, tokens(4), zero=False)
    assert told == [0, sum(p.numel() * p.itemsize for p in model.parameters())]
    fit.undo()
    assert not model._forward_pre_hooks


def test_a_larger_batch_is_planned_for_as_it_comes() -> None:
    model = llama(2)
    optimizer = torch.optim.AdamW(model.parameters())
    small = fitted_to(model, tokens(4), FitTarget(10**9)).peak_bytes
    large = fitted_to(model, tokens(64), FitTarget(10**9)).peak_bytes
    fit = Fit(model, FitTarget((small + 2 * large) // 3, margin=0.0), lambda _: None)
    needed = []
    for rows in (4, 4, 64):
        step(model, optimizer, tokens(rows))
        assert fit.fitted is not None
        assert fit.fitted.fits
        needed.append(fit.fitted.choice.is_needed)
    assert needed == [False, False, True]


def test_what_cannot_be_predicted_trains_on_and_is_reported() -> None:
    told: list[str] = []
    model: Any = torch.nn.Sequential(torch.nn.Linear(4, 4))
    Fit(model, FitTarget(10**9), lambda made: told.append(made.problem))
    model(torch.ones(2, 4)).sum().backward()
    assert model[0].weight.grad is not None
    assert "block" in told[0]


def test_without_a_card_and_a_size_there_is_no_room() -> None:
    with pytest.raises(PlanningError, match=r"device cpu, whose memory is not known: give --memory"):
        room_for(llama(1), tokens(), None, FitTarget())
    assert room_for(llama(1), tokens(), None, FitTarget(None, DEVICES["4090"], 0.5)).ceiling == 12 * 10**9


def test_the_optimizer_is_the_one_that_trains_most_of_the_model() -> None:
    model = llama(1)
    others = torch.optim.SGD([next(model.parameters())], lr=0.1)
    optimizer = torch.optim.AdamW(model.parameters())
    assert optimizers_of(model.parameters()) == [optimizer, others]
    assert optimizers_of(llama(1).parameters()) == []


def test_a_written_plan_is_applied_instead_of_the_librarys_checkpointing(tmp_path: Path) -> None:
    model, plain = llama(3), llama(3)
    limit = FitTarget(fitted_to(model, tokens(32), FitTarget(10**9)).peak_bytes - 20_000, margin=0.0)
    fitted = fitted_to(model, tokens(32), limit)
    assert fitted.choice.is_needed
    path = tmp_path / "plan.yaml"
    path.write_text(fitted.to_yaml(), encoding="utf-8")
    calls = read_plan(path)
    assert calls == fitted.choice.arguments()
    model.gradient_checkpointing_enable()
    with apply_plan(calls, model):
        model(**tokens()).loss.backward()
    assert model.is_gradient_checkpointing
    plain(**tokens()).loss.backward()
    pairs = zip(model.parameters(), plain.parameters(), strict=True)
    assert all(torch.allclose(ours.grad, theirs.grad) for ours, theirs in pairs)


def test_a_call_of_a_plan_may_end_at_its_colon(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("calls:\n  fuse_loss:\n  wrap_blocks:\n    every_n: 2\n", encoding="utf-8")
    assert read_plan(path) == {"fuse_loss": {}, "wrap_blocks": {"every_n": 2}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "calls: 3\n",
        "calls: 0\n",
        "calls: []\n",
        "calls:\n  exec:\n    code: 1\n",
        "calls:\n      deep: 1\n",
        "- a\n",
    ],
)
def test_what_is_no_plan_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(OptionError, match="is not a plan"):
        read_plan(path)
