"""`long_context` with TRL's SFT: the losses and weights of its own run, for each of its ways to a loss."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

import torch
from datasets import Dataset
from peft import LoraConfig
from torch import Tensor
from trl import SFTConfig, SFTTrainer

from ckpt_surgery import long_context
from tests.integrations.local_files import LAYERS, llama, rows, tokenizer

pytestmark = pytest.mark.torch


def own_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    logits = outputs.logits[:, :-1].float().flatten(0, 1)
    items = (labels[:, 1:] != -100).sum() if num_items_in_batch is None else num_items_in_batch
    return torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum") / items


WAYS: dict[str, dict[str, Any]] = {
    "nll": {},
    "dft": {"loss_type": "dft"},
    "chunked_nll": {"loss_type": "chunked_nll"},
    "label smoothing": {"label_smoothing_factor": 0.1},
    "a loss of the user's": {},
    "packed": {"packing": True, "max_length": 16},
    "padding-free": {"padding_free": True, "max_length": None},
    "adapters": {},
}
TOKENS = 96
"""The declared tokens of a batch, so that cut blocks have more than one tile."""
MADE = ("label smoothing", "a loss of the user's")
"""The ways in which TRL makes the logits: it calls the model without labels and a count of items."""


def trained(
    way: str, folder: Path, long: Mapping[str, Any] | None
) -> tuple[list[float], Any, Any, list[type[Tensor]]]:
    """Train; return losses, gradient norms, the model, its `LongContext`, and the class of its forwards' logits."""
    model = llama().train()
    context = None if long is None else long_context(model, TOKENS, **long)
    arguments = SFTConfig(
        output_dir=str(folder),
        max_steps=3,
        eval_steps=3,
        eval_strategy="steps",
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        disable_tqdm=True,
        **WAYS[way],
    )
    data = Dataset.from_list([{name: row[name] for name in ("prompt", "completion")} for row in rows()])
    made: list[type[Tensor]] = []
    model.lm_head.register_forward_hook(
        lambda head, given, logits: made.append(type(logits)) if head.training else None
    )
    trainer = SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=data,
        eval_dataset=data.select(range(2)),
        processing_class=tokenizer(),
        compute_loss_func=own_loss if way == "a loss of the user's" else None,
        peft_config=LoraConfig(target_modules=["q_proj", "v_proj"]) if way == "adapters" else None,
    )
    trainer.train()
    logged = [
        log[key] for log in trainer.state.log_history for key in ("loss", "grad_norm", "eval_loss") if key in log
    ]
    return logged, trainer.model, context, made


@pytest.mark.parametrize("host", [False, True], ids=["here", "on the host"])
@pytest.mark.parametrize("way", WAYS)
def test_sft_trains_as_without_it(way: str, host: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    losses, model, _, _ = trained(way, tmp_path / "own", None)
    torch.manual_seed(0)
    seen, ours, context, made = trained(way, tmp_path / "long", {"host": host})
    assert len(losses) == 7
    assert seen == pytest.approx(losses, rel=1e-3, abs=1e-4)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(ours.get_parameter(name), parameter, rtol=1e-3, atol=1e-4)
    assert len(made) == (6 if way in MADE else 0)
    assert (context.fused_losses, context.made_logits) == (0, {})
    assert context.surgery.checkpointing is not None
    assert [(each.calls, each.reason) for each in context.cuts.values()] == [(6, None)] * LAYERS
