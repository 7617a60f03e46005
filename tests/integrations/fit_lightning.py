"""A training of Lightning under an allocator limit."""

from __future__ import annotations

import sys
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader

from tests.planning.fit_scripts.common import limited, llama, rows, told


class Language(LightningModule):  # type: ignore[misc]  # Lightning is not read by the type checker
    """A Llama that its training step calls."""

    def __init__(self) -> None:
        super().__init__()
        self.model = llama()
        self.losses: list[float] = []

    def training_step(self, batch: dict[str, Tensor], place: int) -> Tensor:
        loss: Tensor = self.model(**batch).loss
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


data = rows(16)
memory = limited()
language = Language()
trainer = Trainer(
    max_epochs=1,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    default_root_dir=sys.argv[1],
)
trainer.fit(language, DataLoader(data, batch_size=4))  # type: ignore[arg-type]
told(language.losses, memory)
