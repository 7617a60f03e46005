"""The guard as a callback of transformers' Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import torch
from torch import Tensor

from ckpt_surgery import CheckpointGuard, GuardError, SurgeryError, SurgeryWarning
from tests.zoo.tiny_models import llama, tokens

pytestmark = [pytest.mark.both, pytest.mark.torch]


class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        row = tokens()["input_ids"][0]
        return {"input_ids": row, "labels": row}


def trained(folder: Path, callbacks: list[Any], prepare: Any = None, **options: Any) -> Any:
    """A Llama of three layers after four steps of a Trainer with checkpointing."""
    from transformers import Trainer, TrainingArguments

    common = {"max_steps": 4, "report_to": [], "use_cpu": True, "gradient_checkpointing": True}
    model = llama(3).float()
    if prepare is not None:
        prepare(model)
    arguments = TrainingArguments(output_dir=str(folder), **common, **options)
    Trainer(model=model, args=arguments, train_dataset=Rows(), callbacks=callbacks).train()
    return model


def test_a_trainer_with_the_callback_proves_every_block(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    callback = CheckpointGuard(on_fault="raise")
    switch = {"gradient_checkpointing_kwargs": {"use_reentrant": False}}
    model = trained(tmp_path, [callback], per_device_train_batch_size=2, **switch)
    assert callback.report is not None
    assert callback.report.ok
    assert callback.report.proved == 3
    assert "3 of 3 blocks proved" in capsys.readouterr().err
    assert not any(module._forward_hooks for module in model.model.layers)


def test_a_trainer_that_begins_again_with_smaller_batches_leaves_nothing_behind(tmp_path: Path) -> None:
    from transformers import TrainerCallback

    sizes = []

    class Full(TrainerCallback):  # type: ignore[misc]  # transformers is not read by the type checker
        """The device is full as the second step of the first batch size ends."""

        def on_step_end(self, args: object, state: Any, control: object, **_: object) -> None:
            sizes.append(state.train_batch_size)
            if len(sizes) == 2:
                raise RuntimeError("CUDA out of memory.")

    callback = CheckpointGuard(wrap=True, on_fault="raise")
    model = trained(tmp_path, [callback, Full()], per_device_train_batch_size=4, auto_find_batch_size=True)
    assert len(set(sizes)) == 2
    assert callback.report is not None
    assert (callback.report.steps, callback.report.proved) == (4, 3)
    hooks = [h for m in model.modules() for h in (*m._forward_hooks.values(), *m._forward_pre_hooks.values())]
    assert not any(hook.__module__.startswith("ckpt_surgery") for hook in hooks)
    assert not any("forward" in vars(layer) for layer in model.model.layers)


def refusing(model: Any) -> None:
    """A block of it is compiled, so that it can be neither wrapped nor watched."""
    model.model.layers[0].compile(backend="eager")


def exchanging(model: Any) -> None:
    """Has other weights in its forwards than in its recomputes."""
    weight = model.model.layers[0].mlp.up_proj.weight.requires_grad_(False)
    own = weight.data

    def load(value: Tensor) -> None:
        weight.data = value

    model.register_forward_pre_hook(lambda *_: load(own + 1))
    model.register_forward_hook(lambda *_: load(own))


@pytest.mark.parametrize("spoil", [refusing, exchanging], ids=["a refusal", "exchanged weights"])
def test_a_training_that_cannot_be_wrapped_goes_on_as_the_trainer_has_it(spoil: Any, tmp_path: Path) -> None:
    options = {"per_device_train_batch_size": 2, "gradient_checkpointing_kwargs": {"use_reentrant": False}}
    bare = trained(tmp_path, [], prepare=spoil, **options)
    with pytest.warns(SurgeryWarning):
        model = trained(tmp_path, [CheckpointGuard(wrap=True)], prepare=spoil, **options)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(model.parameters(), bare.parameters(), strict=True))
    assert not any("forward" in vars(layer) for layer in model.model.layers)
    with pytest.raises((GuardError, SurgeryError)):
        trained(tmp_path, [CheckpointGuard(wrap=True, on_fault="raise")], prepare=spoil, **options)
