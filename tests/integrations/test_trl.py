"""TRL's trainers with the callback evaluate, save, resume and generate as without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

import torch
import transformers
from datasets import Dataset
from safetensors.torch import load_file
from transformers import TrainerCallback
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from ckpt_surgery import CheckpointGuard
from tests.integrations.local_files import LAYERS, model_folder, rows, tokenizer

pytestmark = pytest.mark.torch


def distinct_words(completions: list[str], **_: Any) -> list[float]:
    return [float(len(set(text.split()))) for text in completions]


TRAINERS: dict[str, tuple[Any, Any, list[str], dict[str, Any]]] = {
    "sft": (SFTTrainer, SFTConfig, ["prompt", "completion"], {}),
    "dpo": (DPOTrainer, DPOConfig, ["prompt", "chosen", "rejected"], {}),
    "grpo": (GRPOTrainer, GRPOConfig, ["prompt"], {"num_generations": 2, "max_completion_length": 6, "beta": 0.1}),
}


class Generates(TrainerCallback):  # type: ignore[misc]  # transformers is not read by the type checker
    """A callback that makes the model write a few tokens after each step."""

    def __init__(self) -> None:
        self.written: list[list[int]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        with torch.no_grad():
            model.eval()
            self.written += model.generate(torch.tensor([[4, 5, 6]]), max_new_tokens=4, do_sample=False).tolist()
            model.train()


def train(name: str, folder: Path, callbacks: list[Any], resume: str | None = None) -> tuple[list[Any], Any, Any]:
    kind, config, columns, more = TRAINERS[name]
    data = Dataset.from_list([{column: row[column] for column in columns} for row in rows()])
    arguments = config(
        output_dir=str(folder),
        max_steps=4,
        save_steps=2,
        eval_steps=2,
        eval_strategy="steps",
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        learning_rate=1e-2,
        disable_tqdm=True,
        **more,
    )
    writer = Generates()
    rewards = {"reward_funcs": distinct_words} if name == "grpo" else {}
    trainer = kind(
        model=transformers.AutoModelForCausalLM.from_pretrained(model_folder(folder / "model")),
        args=arguments,
        train_dataset=data,
        eval_dataset=data.select(range(2)),
        processing_class=tokenizer(),
        callbacks=[writer, *callbacks],
        **rewards,
    )
    trainer.train(resume_from_checkpoint=resume)
    wanted = ("loss", "grad_norm", "eval_loss", "reward", "kl")
    kept = [{key: log[key] for key in wanted if key in log} for log in trainer.state.log_history]
    return kept, writer.written, trainer.model


@pytest.mark.parametrize("name", TRAINERS)
def test_with_the_callback_everything_is_as_without_it(name: str, tmp_path: Path) -> None:
    logs, written, model = train(name, tmp_path / "bare", [])
    callback = CheckpointGuard(wrap=True, on_fault="raise")
    seen, seen_written, trained = train(name, tmp_path / "guarded", [callback])
    assert (seen, seen_written) == (logs, written)
    assert callback.report is not None
    assert callback.report.proved == LAYERS
    assert [row.counts for row in callback.report.blocks] == [(1, 1)] * LAYERS
    assert list(trained.state_dict()) == list(model.state_dict())
    assert not any("forward" in vars(layer) for layer in trained.model.layers)
    folders = [tmp_path / run / "checkpoint-2" for run in ("guarded", "bare")]
    assert sorted(p.name for p in folders[0].iterdir()) == sorted(p.name for p in folders[1].iterdir())
    saved, expected = (load_file(folder / "model.safetensors") for folder in folders)
    assert list(saved) == list(expected)
    assert all(torch.equal(saved[key], expected[key]) for key in expected)
    resumed = train(name, tmp_path / "resumed", [CheckpointGuard(wrap=True)], str(folders[0]))[0]
    assert resumed == train(name, tmp_path / "again", [], str(folders[1]))[0]
