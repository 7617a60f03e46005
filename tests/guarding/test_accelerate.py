"""accelerate: `prepare`, accumulation, `save_state` and resuming work as without a surgery."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import accelerate  # type: ignore[import-untyped]
import torch
from torch import Tensor

from ckpt_surgery import guard, wrap_blocks
from tests.zoo.tiny_models import llama, tokens

pytestmark = [pytest.mark.both, pytest.mark.torch]

LAYERS = 3


def train(folder: Path, *, wrapped: bool, resumed: bool) -> tuple[list[float], dict[str, Tensor]]:
    """Train, saving the state in the middle or resuming from there; return losses and weights."""
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    raw: Any = llama(LAYERS, attention_dropout=0.1, use_cache=False).float()
    surgery = wrap_blocks(raw) if wrapped else None
    data: Any = [{"input_ids": row, "labels": row} for row in tokens(8)["input_ids"]]
    rows: Any = torch.utils.data.DataLoader(data)
    model, optimizer, loader = accelerator.prepare(raw, torch.optim.AdamW(raw.parameters(), 0.01), rows)
    watching = guard(accelerator.unwrap_model(model), on_fault="raise") if wrapped else None
    torch.manual_seed(0)
    if resumed:
        accelerator.load_state(folder)
        loader = accelerator.skip_first_batches(loader, 4)
    losses = []
    for place, batch in enumerate(loader):
        if place == 4 and not resumed:
            accelerator.save_state(folder)
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            model(**batch)
        accelerator.unwrap_model(model).generate(batch["input_ids"], max_new_tokens=2, do_sample=False)
        model.train()
    if watching is not None and surgery is not None:
        assert watching.report().proved == LAYERS
        watching.remove()
        surgery.undo()
    accelerator.free_memory()
    return losses, dict(raw.state_dict())


def test_states_and_losses_are_those_of_a_run_without_it(tmp_path: Path) -> None:
    bare_losses, bare = train(tmp_path / "bare", wrapped=False, resumed=False)
    losses, trained = train(tmp_path / "wrapped", wrapped=True, resumed=False)
    names = sorted(path.name for path in (tmp_path / "bare").iterdir())
    assert sorted(path.name for path in (tmp_path / "wrapped").iterdir()) == names
    assert losses == bare_losses
    assert list(trained) == list(bare)
    assert all(torch.equal(trained[name], bare[name]) for name in bare)
    resumed_losses, resumed = train(tmp_path / "wrapped", wrapped=True, resumed=True)
    expected_losses, expected = train(tmp_path / "bare", wrapped=False, resumed=True)
    assert resumed_losses == expected_losses
    assert all(torch.equal(resumed[name], expected[name]) for name in expected)
