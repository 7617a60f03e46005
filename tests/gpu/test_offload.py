"""Activation offload on a device: real and busy streams give the gradients of a run without offload."""

from __future__ import annotations

import contextlib
from typing import Any, cast

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from ckpt_surgery import wrap_blocks
from ckpt_surgery.runtime.offload.buffer_pool import forget_error, registered_buffer
from tests.gpu.models import batch, equal, gradients, model_of, near

pytestmark = [pytest.mark.gpu, pytest.mark.torch]

both_modes = pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])


def new_stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


@both_modes
def test_gradients_are_those_without_offload(reentrant: bool, device: str) -> None:
    model, inputs = model_of("LlamaForCausalLM", device), batch(device)
    expected = gradients(model, inputs)
    with wrap_blocks(model, use_reentrant=reentrant, offload="cpu") as surgery:
        for _ in range(3):
            assert equal(gradients(model, inputs), expected)
        assert surgery.stats is not None
        assert surgery.stats.tensors == 9, "three of four inputs, in three steps"


@both_modes
def test_streams_that_lag_change_nothing(reentrant: bool, device: str) -> None:
    model, inputs = model_of("LlamaForCausalLM", device), batch(device)
    expected = gradients(model, inputs)
    busy = torch.randn(2048 if device == "cuda" else 8, 2048 if device == "cuda" else 8, device=device)
    side = torch.cuda.stream(new_stream()) if device == "cuda" else contextlib.nullcontext()
    with wrap_blocks(model, use_reentrant=reentrant, offload="cpu"):
        for _ in range(5):
            with side:
                for _ in range(20):
                    busy = torch.tanh(busy @ busy)
            assert equal(gradients(model, inputs), expected)


@both_modes
def test_a_step_on_a_separate_stream(reentrant: bool, device: str) -> None:
    if device == "cpu":
        pytest.skip("the processor has no streams")
    model, inputs = model_of("LlamaForCausalLM", device), batch(device)
    expected = gradients(model, inputs)
    with wrap_blocks(model, use_reentrant=reentrant, offload="cpu"):
        stream = new_stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = gradients(model, inputs)
        torch.cuda.current_stream().wait_stream(stream)
        assert equal(result, expected)


@both_modes
@pytest.mark.parametrize("options", [{"offload": "cpu", "offload_pinned": 0}, {"offload": "disk"}], ids=str)
def test_pageable_memory_and_files_serve_as_well(reentrant: bool, options: dict[str, Any], device: str) -> None:
    model, inputs = model_of("LlamaForCausalLM", device), batch(device)
    expected = gradients(model, inputs)
    with wrap_blocks(model, use_reentrant=reentrant, **options) as surgery:
        for _ in range(3):
            assert equal(gradients(model, inputs), expected)
        assert surgery.stats is not None
        assert surgery.stats.no_room == 0


def test_as_much_is_pinned_as_leaves_the_device(device: str) -> None:
    if device == "cpu":
        pytest.skip("nothing is pinned for the processor")
    model, inputs = model_of("LlamaForCausalLM", device), batch(device)
    with wrap_blocks(model, offload="cpu", offload_pinned="1GB") as surgery:
        for _ in range(3):
            gradients(model, inputs)
        assert surgery.offloader is not None
        assert surgery.stats is not None
        pool = cast(Any, surgery.offloader.transport).pool
        assert pool.pinned_bytes == pool.bytes == surgery.stats.bytes // 3
        pool._collect()
        assert all(buffer.memory.is_pinned() for buffer in pool._idle)
    assert pool.bytes == 0


def test_memory_that_cannot_be_pinned_leaves_no_error_behind(device: str) -> None:
    if device == "cpu":
        pytest.skip("nothing is pinned for the processor")
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    buffer = registered_buffer(10_000, torch.device(device), runtime)
    assert int(runtime.cudaHostRegister(buffer.memory.data_ptr(), 10_000, 1)) != 0, "it is pinned already"
    forget_error(torch.device(device))
    assert torch.ones(3, device=device).sum().item() == 3


def test_memory_that_is_given_back_is_not_read_again(device: str) -> None:
    model, inputs = model_of("LlamaForCausalLM", device), batch(device)
    expected = gradients(model, inputs)

    def poison(*arguments: object) -> None:
        """Take what was given back, and write over it, while copies may still be under way."""
        for _ in range(8):
            torch.full((2, 32, 64), torch.nan, device=device)

    for layer in model.get_submodule("model.layers").children():
        layer.register_forward_pre_hook(poison)
    with wrap_blocks(model, offload="cpu"):
        for _ in range(5):
            assert equal(gradients(model, inputs), expected)


def test_kept_results_leave_the_device_too(device: str) -> None:
    model = model_of("LlamaForCausalLM", device, attention="sdpa").to(torch.bfloat16)
    inputs = batch(device, tokens=64)
    expected = gradients(model, inputs)
    with wrap_blocks(model, save="attention", offload="cpu", save_offload=True) as surgery:
        for _ in range(3):
            assert near(gradients(model, inputs), expected)
        assert surgery.stats is not None
        assert surgery.stats.tensors >= 3 * (3 + 3), "inputs and results of three of four blocks"


@both_modes
def test_after_a_step_without_room_the_next_one_is_right(reentrant: bool, device: str) -> None:
    model, inputs = model_of("LlamaForCausalLM", device), batch(device)
    expected = gradients(model, inputs)

    def full(*_: object) -> None:
        if torch._C._current_graph_task_id() != -1:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    with wrap_blocks(model, use_reentrant=reentrant, offload="cpu"):
        for _ in range(2):
            handle = model.get_submodule("model.layers.1.mlp").register_forward_pre_hook(full)
            with pytest.raises(torch.OutOfMemoryError):
                gradients(model, inputs)
            handle.remove()
            assert equal(gradients(model, inputs), expected)
