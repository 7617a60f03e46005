"""The guard as a callback of transformers' Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import torch
import yaml
from torch import Tensor

from ckpt_surgery import CheckpointGuard, GuardError, OptionError, SurgeryError, SurgeryWarning
from tests.planning.fit_scripts.common import llama as fitted_llama
from tests.planning.fit_scripts.common import rows
from tests.planning.fit_scripts.runs import python
from tests.zoo.memory_limit import MemoryLimit
from tests.zoo.tiny_models import llama, tokens

pytestmark = [pytest.mark.both, pytest.mark.torch]


class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        row = tokens()["input_ids"][0]
        return {"input_ids": row, "labels": row}


def trained(folder: Path, callbacks: list[Any], prepare: Any = None, **options: Any) -> Any:
    """Train a Llama of three layers for four steps of a Trainer with checkpointing."""
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


def test_a_trainer_that_restarts_with_smaller_batches_leaves_nothing(tmp_path: Path) -> None:
    from transformers import TrainerCallback

    sizes = []

    class Full(TrainerCallback):  # type: ignore[misc]  # transformers is not read by the type checker
        """A device that is full at the end of the second step of the first batch size."""

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
    """Compile a block, so that the model can be neither wrapped nor watched."""
    model.model.layers[0].compile(backend="eager")


def exchanging(model: Any) -> None:
    """Use other weights in forwards than in recomputes."""
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


@pytest.mark.slow
def test_a_plan_that_fit_has_written_is_applied_while_a_trainer_trains(tmp_path: Path) -> None:
    plan, script = tmp_path / "plan.yaml", ("-m", "tests.planning.fit_scripts.trainer", "out")
    options = ("--dry-run", "--memory", "6000KB", "--margin", "0", "--write", str(plan))
    written = python(tmp_path, "-m", "ckpt_surgery", "fit", *options, *script)
    assert written.code == 0, written.output
    planned = yaml.safe_load(plan.read_text(encoding="utf-8"))
    count = planned["calls"]["wrap_blocks"]["first"]["model.layers"]
    assert 0 < count < 3
    bare = python(tmp_path, *script)

    def train(callback: Any) -> tuple[Any, MemoryLimit]:
        from transformers import Trainer, TrainingArguments

        common = {"report_to": [], "use_cpu": True, "save_strategy": "no", "logging_steps": 1, "learning_rate": 1e-2}
        arguments = TrainingArguments(str(tmp_path), per_device_train_batch_size=4, max_steps=4, **common)
        data = rows(16)
        with MemoryLimit(None) as memory:
            trainer = Trainer(model=fitted_llama(), args=arguments, train_dataset=data, callbacks=[callback])
            trainer.train()
        return trainer, memory

    callback = CheckpointGuard(plan=plan, prove=False, on_fault="raise")
    trainer, memory = train(callback)
    losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
    assert losses == pytest.approx(bare.losses, rel=1e-4)
    assert memory.peak_bytes == pytest.approx(planned["predicted"]["peak_bytes"], rel=1e-3)
    assert memory.peak_bytes < bare.peak
    assert callback.report is not None
    assert [row.counts for row in callback.report.blocks] == [(1, 1)] * count
    assert callback.report.proved == 0
    assert not any("forward" in vars(layer) for layer in trainer.model.model.layers)


def test_what_is_no_plan_is_refused_before_the_training(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("calls: 3\n", encoding="utf-8")
    with pytest.raises(OptionError, match="is not a plan"):
        CheckpointGuard(plan=path)
