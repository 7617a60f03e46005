"""`wrap_blocks` on a device: exact gradients, the device's random numbers, half precision, and memory."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn

from ckpt_surgery import SurgeryError, guard, long_context, wrap_blocks
from tests.gpu.models import DROPOUT, SIZES, batch, close, equal, gradients, model_of, near

pytestmark = [pytest.mark.gpu, pytest.mark.torch]

both_modes = pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])


@both_modes
@pytest.mark.parametrize("name", SIZES)
def test_gradients_are_those_without_checkpointing(name: str, reentrant: bool, device: str) -> None:
    model, inputs = model_of(name, device), batch(device)
    expected = gradients(model, inputs)
    with wrap_blocks(model, use_reentrant=reentrant):
        assert (close if reentrant else equal)(gradients(model, inputs), expected)
    assert equal(gradients(model, inputs), expected), "undone, it is the model that it was"


@both_modes
def test_dropout_masks_of_the_device_are_drawn_again(reentrant: bool, device: str) -> None:
    model, inputs = model_of("GPTBigCodeForCausalLM", device, **DROPOUT), batch(device)
    expected = gradients(model, inputs)
    with wrap_blocks(model, use_reentrant=reentrant):
        assert equal(gradients(model, inputs), expected)
    with wrap_blocks(model, use_reentrant=reentrant, preserve_rng_state="unsafe"):
        assert not equal(gradients(model, inputs), expected), "the masks would not have mattered"


@both_modes
def test_generators_of_the_device_end_where_they_end_without_checkpointing(reentrant: bool, device: str) -> None:
    model, inputs = model_of("GPTBigCodeForCausalLM", device, **DROPOUT), batch(device)
    gradients(model, inputs)
    expected = torch.rand(4, device=device)
    with wrap_blocks(model, use_reentrant=reentrant):
        gradients(model, inputs)
        assert torch.equal(torch.rand(4, device=device), expected)


@both_modes
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_recompute_is_in_the_autocast_of_its_forward(dtype: torch.dtype, reentrant: bool, device: str) -> None:
    model, inputs = model_of("LlamaForCausalLM", device), batch(device)

    def step() -> dict[str, Tensor]:
        model.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype):
            loss = model(**inputs).loss
        torch.autograd.backward(loss)
        return {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}

    expected = step()
    with wrap_blocks(model, use_reentrant=reentrant):
        assert equal(step(), expected)


def test_a_drift_that_begins_late_is_reported_in_the_next_step_at_latest(device: str) -> None:
    model, inputs = model_of("LlamaForCausalLM", device), batch(device)
    expected = gradients(model, inputs)
    norm: Any = model.get_submodule("model.layers.1.input_layernorm")
    with wrap_blocks(model, self_check="always"):
        for _ in range(5):
            assert equal(gradients(model, inputs), expected)

        def drift(*_: object) -> None:
            norm.variance_epsilon += 0.1

        def two_steps() -> None:
            for _ in range(2):
                gradients(model, inputs)

        model.register_forward_hook(drift)
        with pytest.raises(SurgeryError, match=r"layers\.1 gave a different result than its forward"):
            two_steps()


def test_memory_between_forward_and_backward_falls(device: str) -> None:
    if device == "cpu":
        pytest.skip("the processor has no counter of allocated bytes")

    def kept(model: nn.Module, inputs: dict[str, Any]) -> int:
        before = torch.cuda.memory_allocated()
        loss = model(**inputs).loss
        held = int(torch.cuda.memory_allocated()) - before
        torch.autograd.backward(loss)
        model.zero_grad(set_to_none=True)
        return held

    model, inputs = model_of("LlamaForCausalLM", device), batch(device, tokens=512)
    kept(model, inputs)  # the workspaces of the kernels stay
    without = kept(model, inputs)
    with wrap_blocks(model):
        assert kept(model, inputs) < without / 2


@both_modes
@pytest.mark.parametrize("padded", [False, True], ids=["without a mask", "with a mask"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_fused_attention_passes_the_self_check(dtype: torch.dtype, padded: bool, reentrant: bool, device: str) -> None:
    model, inputs = model_of("LlamaForCausalLM", device, attention="sdpa").to(dtype), batch(device)
    if padded:
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        inputs["attention_mask"][0, -5:] = 0
    expected = gradients(model, inputs)
    with wrap_blocks(model, use_reentrant=reentrant, self_check="always"):
        for _ in range(3):
            assert gradients(model, inputs).keys() == expected.keys()


@pytest.mark.parametrize("save", ["attention", "matmul:2", "random"])
def test_what_is_kept_of_a_block_changes_no_gradient(save: str, device: str) -> None:
    model = model_of("LlamaForCausalLM", device, attention="sdpa", attention_dropout=0.1).to(torch.bfloat16)
    inputs = batch(device)
    expected = gradients(model, inputs)
    with wrap_blocks(model, save=save) as surgery:
        for _ in range(3):
            assert near(gradients(model, inputs), expected)
        assert sum(surgery.policies[0].bytes.values()) > 0


def test_a_guard_proves_blocks_with_fused_attention(device: str) -> None:
    model = model_of("LlamaForCausalLM", device, attention="sdpa").to(torch.bfloat16)
    inputs = batch(device)
    wrap_blocks(model)
    with guard(model, every=1, on_fault="raise") as watching:
        for _ in range(4):
            gradients(model, inputs)
    assert watching.report().proved == 4


@pytest.mark.parametrize("host", [None, True], ids=["by its sizes", "on the host"])
def test_a_long_context_has_the_gradients_of_the_model(host: bool | None, device: str) -> None:
    model, inputs = model_of("LlamaForCausalLM", device, attention="sdpa"), batch(device, tokens=256)
    expected = gradients(model, inputs)
    with long_context(model, 4 * 256, host=host) as context:
        assert near(gradients(model, inputs), expected)
        assert context.fused_losses == 1
        assert {(each.reason, each.parked) for each in context.cuts.values()} == {(None, bool(host))}
        assert ("tokens on this" if device.startswith("cuda") else "assumed") in str(context)
