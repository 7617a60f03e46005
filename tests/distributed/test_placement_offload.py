"""Training with parameters that accelerate offloads: its faults as released, and the check's refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload, disk_offload, dispatch_model  # type: ignore[import-untyped]
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import LlamaForCausalLM, Trainer, TrainingArguments

from ckpt_surgery.distributed.placement import check_placement, guard_placement
from ckpt_surgery.errors import PlacementError
from tests.distributed.placement_script import tiny_llama

pytestmark = pytest.mark.both

IDS = torch.arange(16).reshape(2, 8)
DISK_MAP = {
    "model.embed_tokens": "cpu",
    "model.layers.0": "cpu",
    "model.layers.1": "disk",
    "model.layers.2": "disk",
    "model.norm": "cpu",
    "model.rotary_emb": "cpu",
    "lm_head": "cpu",
}


def on_disk(model: LlamaForCausalLM, folder: Path) -> LlamaForCausalLM:
    """Offload the second and third of three layers: 18 of 30 parameters."""
    return dispatch_model(model, dict(DISK_MAP), main_device="cpu", offload_dir=str(folder))


def loss(model: nn.Module) -> Tensor:
    result: Tensor = model(input_ids=IDS, labels=IDS).loss
    return result


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    loss(model).backward()  # type: ignore[no-untyped-call]
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def missing(actual: dict[str, Tensor | None]) -> list[str]:
    return [name for name, gradient in actual.items() if gradient is None]


def offloaded(model: nn.Module) -> list[str]:
    return [name for name, parameter in model.named_parameters() if parameter.is_meta]


OFFLOADS: dict[str, tuple[int, Callable[[LlamaForCausalLM, Path], LlamaForCausalLM]]] = {
    "two layers on disk": (18, on_disk),
    "all in host memory": (30, lambda model, _: cpu_offload(model, torch.device("cpu"))),
    "all on disk": (30, lambda model, folder: disk_offload(model, str(folder), torch.device("cpu"))),
}


@pytest.mark.parametrize("case", OFFLOADS)
def test_offloaded_parameters_have_no_gradient_and_are_refused(case: str, tmp_path: Path) -> None:
    count, offload = OFFLOADS[case]
    model = offload(tiny_llama(), tmp_path)
    without = missing(gradients(model))
    assert len(without) == count
    assert without == offloaded(model)
    with pytest.raises(PlacementError, match=f"{count} of its 30 trainable parameters"):
        check_placement(model)
    with guard_placement(model):
        with pytest.raises(PlacementError, match=f"{count} of its 30 trainable parameters"):
            loss(model)
        with torch.no_grad():
            assert torch.equal(loss(model), loss(tiny_llama()))
    check_placement(tiny_llama())


def test_the_refusal_names_the_first_parameter_the_places_and_the_ways_out(tmp_path: Path) -> None:
    with pytest.raises(PlacementError) as caught:
        check_placement(on_disk(tiny_llama(), tmp_path))
    said = str(caught.value)
    assert said.startswith("LlamaForCausalLM cannot be trained here with its parameters where they are")
    assert "'model.layers.1.self_attn.q_proj.weight' first" in said
    # A layer has 2,592 elements of 4 bytes; the embedding, the head and the last norm have 2,064.
    assert "(cpu: 4,656 parameters, 18.2 KiB; meta, offloaded to disk: 5,184 parameters, 20.2 KiB)" in said
    assert "requires_grad_(False)" in said
    assert "FSDP" in said
    assert "torchrun" not in said


def test_the_guard_stops_a_trainer_that_would_leave_offloaded_layers(tmp_path: Path) -> None:
    def train(model: LlamaForCausalLM) -> int:
        """Train for two steps and count the parameters that moved."""
        before = {name: parameter.clone() for name, parameter in model.named_parameters() if not parameter.is_meta}
        arguments = TrainingArguments(
            str(tmp_path / "out"),
            max_steps=2,
            learning_rate=0.01,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        Trainer(model, arguments, train_dataset=[{"input_ids": IDS[0], "labels": IDS[0]}] * 16).train()
        after = dict(model.named_parameters())
        return sum(not torch.equal(value, after[name]) for name, value in before.items())

    assert train(tiny_llama()) == 30
    model = on_disk(tiny_llama(), tmp_path / "offloaded")
    assert train(model) == 12
    guard_placement(model)
    with pytest.raises(PlacementError):
        train(model)


def frozen(model: LlamaForCausalLM) -> LlamaForCausalLM:
    model.model.layers[1:].requires_grad_(False)
    return model


def adapted(model: LlamaForCausalLM, layers: Sequence[int] = (0,)) -> nn.Module:
    torch.manual_seed(0)
    chosen = list(layers)
    options = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], layers_to_transform=chosen, init_lora_weights=False)
    return get_peft_model(model, options)


@pytest.mark.parametrize("checkpointing", [None, True])
@pytest.mark.parametrize(("prepare", "trained"), [(frozen, 12), (adapted, 4)])
def test_beside_frozen_offloaded_layers_the_others_train_rightly(
    prepare: Callable[[LlamaForCausalLM], nn.Module], trained: int, checkpointing: bool | None, tmp_path: Path
) -> None:
    expected = gradients(prepare(tiny_llama()))
    base = tiny_llama() if prepare is adapted else frozen(tiny_llama())
    model: Any = prepare(on_disk(base, tmp_path))
    assert len(offloaded(model)) == 18
    if checkpointing is not None:
        model.gradient_checkpointing_enable({"use_reentrant": checkpointing})
        model.enable_input_require_grads()
    with guard_placement(model):
        actual = gradients(model)
    assert missing(actual) == missing(expected)
    assert len(actual) - len(missing(actual)) == trained
    for name, gradient in actual.items():
        assert gradient is None or torch.allclose(gradient, expected[name], atol=1e-6)  # type: ignore[arg-type]


def test_adapters_on_offloaded_layers_are_refused(tmp_path: Path) -> None:
    model = adapted(on_disk(tiny_llama(), tmp_path), [0, 1])
    with pytest.raises(PlacementError, match="4 of its 8 trainable parameters"):
        check_placement(model)
