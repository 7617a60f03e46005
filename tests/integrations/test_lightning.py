"""Lightning: the callback finds the models that a training step calls, and its checkpoints are unchanged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning")

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import Tensor

from ckpt_surgery import GuardError, SurgeryWarning
from ckpt_surgery.guarding.lightning import LightningGuard
from tests.zoo.tiny_models import llama, tokens

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

LAYERS = 3


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """Remove the variables that Lightning sets for the ranks of DDP: accelerate would read them."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


class Language(LightningModule):  # type: ignore[misc]  # Lightning is not read by the type checker
    """A Llama called by the training step inside the LightningModule, which itself is never called."""

    def __init__(self, checkpointed: bool = True) -> None:
        super().__init__()
        self.model = llama(LAYERS, attention_dropout=0.1).float()
        if checkpointed:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        self.losses: list[float] = []

    def training_step(self, batch: dict[str, Tensor], place: int) -> Tensor:
        loss: Tensor = self.model(**batch).loss
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: dict[str, Tensor], place: int) -> None:
        self.log("loss", self.model(**batch).loss)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), 0.01)


def fit(folder: Path, module: Language, *callbacks: Any, strategy: str = "auto", resume: Path | None = None) -> None:
    seed_everything(0)
    data: Any = [{"input_ids": row, "labels": row} for row in tokens(6)["input_ids"]]
    rows: Any = torch.utils.data.DataLoader(data)
    trainer = Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        devices=1,
        strategy=strategy,
        max_epochs=2 if resume else 1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        val_check_interval=2,
        accumulate_grad_batches=2,
        callbacks=[*callbacks],
    )
    trainer.fit(module, rows, rows, ckpt_path=resume, weights_only=False)
    trainer.save_checkpoint(folder / "last.ckpt")
    if torch.distributed.is_initialized():  # Lightning leaves its group
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("strategy", ["auto", "ddp"])
def test_training_and_checkpoints_are_those_of_a_run_without_it(
    tmp_path: Path, strategy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bare, module, callback = Language(), Language(), LightningGuard(on_fault="raise")
    fit(tmp_path / "bare", bare, strategy=strategy)
    fit(tmp_path / "guarded", module, callback, strategy=strategy)
    assert module.losses == bare.losses
    (report,) = callback.reports
    assert (report.proved, report.steps) == (LAYERS, 6)
    assert f"{LAYERS} of {LAYERS} blocks proved" in capsys.readouterr().err
    names = ("bare", "guarded")
    saved, expected = (torch.load(tmp_path / n / "last.ckpt", weights_only=False)["state_dict"] for n in names[::-1])
    assert list(saved) == list(expected)
    assert all(torch.equal(saved[name], expected[name]) for name in expected)
    assert not any("forward" in vars(layer) for layer in module.model.model.layers), "it is undone at the end"
    again, guarded = Language(), Language()
    fit(tmp_path / "again", again, resume=tmp_path / "bare" / "last.ckpt")
    fit(tmp_path / "resumed", guarded, LightningGuard(on_fault="raise"), resume=tmp_path / "guarded" / "last.ckpt")
    assert guarded.losses == again.losses != []


@pytest.mark.parametrize(("wrap", "reports"), [(None, 0), (True, 1), (False, 1)])
def test_models_without_checkpointing_are_wrapped_only_if_asked_for(
    tmp_path: Path, wrap: bool | None, reports: int
) -> None:
    callback = LightningGuard(wrap=wrap)
    fit(tmp_path, Language(checkpointed=False), callback)
    assert len(callback.reports) == reports
    assert all(row.counts == ((1, 1) if wrap else (1, 0)) for report in callback.reports for row in report.blocks)


def test_a_fault_is_reported_and_an_error_undoes_the_surgery(tmp_path: Path) -> None:
    module = Language()
    module.model.model.layers[1].eval()
    with pytest.warns(SurgeryWarning, match="evaluation mode"):
        fit(tmp_path, module, LightningGuard(wrap=True))
    module = Language()
    module.model.model.layers[1].eval()
    with pytest.raises(GuardError):
        fit(tmp_path, module, LightningGuard(on_fault="raise"))
    assert not any("forward" in vars(layer) for layer in module.model.model.layers)


def test_a_model_that_cannot_be_wrapped_is_an_error_if_asked_for(tmp_path: Path) -> None:
    module = Language()
    module.model.model.layers[0].compile(backend="eager")
    with pytest.raises(GuardError):
        fit(tmp_path, module, LightningGuard(on_fault="raise"))
    assert not any("forward" in vars(layer) for layer in module.model.model.layers)
