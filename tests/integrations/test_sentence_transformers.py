"""sentence-transformers: a loss calls the model for each column, and the guard counts it all as one step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sentence_transformers")

import torch
import transformers
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
    models,
)

from ckpt_surgery import CheckpointGuard
from tests.integrations.local_files import LAYERS, SPECIAL, WORDS, sentence, tokenizer

pytestmark = pytest.mark.torch


def encoder(folder: Path) -> Any:
    """Read a sentence encoder around a tiny random BERT from a folder."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(SPECIAL) + len(WORDS),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    transformers.BertModel(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    words = models.Transformer(str(folder), max_seq_length=16)
    return SentenceTransformer(modules=[words, models.Pooling(words.get_word_embedding_dimension())], device="cpu")


def train(folder: Path, callbacks: list[Any]) -> tuple[list[Any], Any]:
    model = encoder(folder / "model")
    data = Dataset.from_list([{"anchor": sentence(n), "positive": sentence(n + 1)} for n in range(12)])
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder / "out"),
        max_steps=4,
        logging_steps=1,
        save_steps=2,
        report_to="none",
        use_cpu=True,
        per_device_train_batch_size=3,
        learning_rate=1e-2,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        disable_tqdm=True,
    )
    loss = losses.MultipleNegativesRankingLoss(model)
    trainer = SentenceTransformerTrainer(model, arguments, train_dataset=data, loss=loss, callbacks=callbacks)
    trainer.train()
    return [log["loss"] for log in trainer.state.log_history if "loss" in log], model


def test_training_is_unchanged_and_blocks_are_recomputed_per_column(tmp_path: Path) -> None:
    bare_losses, bare = train(tmp_path / "bare", [])
    callback = CheckpointGuard(wrap=True, on_fault="raise")
    seen, model = train(tmp_path / "guarded", [callback])
    assert seen == bare_losses
    assert callback.report is not None
    assert [row.counts for row in callback.report.blocks] == [(2, 2)] * LAYERS
    assert (callback.report.steps, callback.report.proved) == (3, LAYERS)
    trained, expected = model.state_dict(), bare.state_dict()
    assert list(trained) == list(expected)
    assert all(torch.equal(trained[name], expected[name]) for name in expected)
    model.save_pretrained(str(tmp_path / "saved"))
    again = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert (again.encode(["red cat"]) == bare.encode(["red cat"])).all()
