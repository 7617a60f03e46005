"""`long_context` in loops written by others: transformers' Trainer, and DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ckpt_surgery import long_context
from tests.long_sequences.test_long_context import assert_same, batch, llama, step

pytestmark = [pytest.mark.torch, pytest.mark.both]


class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Eight rows with different numbers of labels."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        ids, labels = batch()["input_ids"][0], batch()["labels"][1].clone()
        labels[:place] = -100
        return {"input_ids": ids, "labels": labels}


def training_arguments(folder: Path, **options: Any) -> Any:
    """Return the arguments of both trainings of a test, and more."""
    from transformers import TrainingArguments

    always = {"report_to": [], "use_cpu": True, "learning_rate": 1e-2, "disable_tqdm": True}
    return TrainingArguments(output_dir=str(folder), per_device_train_batch_size=2, **always, **options)


def trained(
    folder: Path, way: Mapping[str, Any] | None, *, adapters: bool = False, **options: Any
) -> tuple[list[float], Any, Any]:
    """Train six accumulated steps with two evaluations; return losses, model and, given a `way`, its `LongContext`."""
    from transformers import Trainer

    model = llama()
    if adapters:
        peft = pytest.importorskip("peft")
        model = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj", "up_proj"]))
    context = None if way is None else long_context(model, **way)
    arguments = training_arguments(
        folder,
        max_steps=6,
        eval_steps=3,
        eval_strategy="steps",
        logging_steps=1,
        gradient_accumulation_steps=2,
        **options,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Rows(), eval_dataset=Rows())
    trainer.train()
    losses = [log[key] for log in trainer.state.log_history for key in ("loss", "eval_loss") if key in log]
    return losses, model, context


@pytest.mark.parametrize(
    ("way", "options"),
    [
        ({"cut": False}, {}),
        ({"tokens": 96, "host": True}, {}),
        ({"tokens": 96}, {"adapters": True, "label_smoothing_factor": 0.1}),
    ],
    ids=["not cut", "tiles on the host", "tiles, adapters and label smoothing"],
)
def test_the_trainer_trains_as_without_it(way: dict[str, Any], options: dict[str, Any], tmp_path: Path) -> None:
    losses, model, _ = trained(tmp_path / "own", None, **options)
    seen, ours, context = trained(tmp_path / "long", way, **options)
    assert len(losses) == 8
    assert seen == pytest.approx(losses, abs=2e-4)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(ours.get_parameter(name), parameter, rtol=1e-3, atol=1e-4)
    assert context.fused_losses == 12
    assert not context.made_logits
    calls = [(12 if "tokens" in way else 0, None)] * 2 if way.get("cut", True) else []
    assert [(each.calls, each.reason) for each in context.cuts.values()] == calls


def test_a_training_goes_on_from_what_it_saved(tmp_path: Path) -> None:
    from transformers import Trainer

    def train(folder: str, *, resumes: bool, way: Mapping[str, Any] | None) -> Any:
        model = llama()
        if way is not None:
            long_context(model, **way)
        arguments = training_arguments(tmp_path / folder, max_steps=4, save_steps=2)
        trainer = Trainer(model=model, args=arguments, train_dataset=Rows())
        trainer.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2") if resumes else None)
        return model

    way = {"tokens": 96, "host": True}
    whole = train("whole", resumes=False, way=way)
    ours = train("ours", resumes=True, way=way)
    without = train("without", resumes=True, way=None)
    for name, parameter in whole.named_parameters():
        torch.testing.assert_close(ours.get_parameter(name), parameter, rtol=0, atol=0)
        torch.testing.assert_close(without.get_parameter(name), parameter, rtol=1e-3, atol=1e-5)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("tokens", [None, 96])
def test_under_distributed_data_parallel_a_step_is_that_of_the_model_alone(tokens: int | None) -> None:
    expected = step(llama(), **batch())
    model = llama()
    context = long_context(model, tokens)
    loss, gradients = step(DistributedDataParallel(model), **batch())
    assert_same((loss, {name.removeprefix("module."): each for name, each in gradients.items()}), expected)
    assert not context.made_logits
    assert {(each.calls > 0, each.reason) for each in context.cuts.values()} == {(tokens is not None, None)}
