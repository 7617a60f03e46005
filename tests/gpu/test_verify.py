"""`verify` on a device: healthy models pass, planted faults are found, and the device's bytes are counted."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from ckpt_surgery import verify, wrap_blocks
from tests.gpu.models import DROPOUT, SIZES, batch, model_of

pytestmark = [pytest.mark.gpu, pytest.mark.torch]


@pytest.mark.parametrize("name", sorted(set(SIZES) - {"MixtralForCausalLM"}))
def test_released_models_pass(name: str, device: str) -> None:
    report = verify(model_of(name, device), batch(device))
    assert report.ok, str(report)


def test_dropout_is_no_fault(device: str) -> None:
    report = verify(model_of("GPTBigCodeForCausalLM", device, **DROPOUT), batch(device))
    assert report.ok, str(report)


def test_mixtral_with_router_loss_fails_reentrant_and_passes_wrapped(device: str) -> None:
    model, inputs = model_of("MixtralForCausalLM", device), batch(device)
    assert not verify(model, inputs, modes="reentrant").ok
    with wrap_blocks(model):
        report = verify(model, inputs)
        assert report.ok, str(report)


def test_a_gradient_that_changes_in_the_recompute_is_found(device: str) -> None:
    model, inputs = model_of("LlamaForCausalLM", device), batch(device)

    def disturb(module: Any, arguments: Any, output: Any) -> Any:
        in_the_backward = torch._C._current_graph_task_id() != -1
        return output * (1.5 if in_the_backward else 1.0)

    model.get_submodule("model.layers.1.input_layernorm").register_forward_hook(disturb)
    report = verify(model, inputs, modes="non_reentrant")
    assert {fault.level for fault in report.modes[0].faults} == {"values"}
