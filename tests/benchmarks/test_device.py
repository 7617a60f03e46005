"""The device of a benchmark asks torch for what it is named after, in functions that torch has."""

from __future__ import annotations

from functools import partial

import pytest

pytest.importorskip("torch")

import torch

from benchmarks.device import PROCESSOR, Device

pytestmark = pytest.mark.torch


def test_a_gpu_is_asked_through_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ask(name: str) -> int:
        asked.append(name)
        return 7

    for name in (
        "cuda.synchronize",
        "cuda.empty_cache",
        "accelerator.empty_host_cache",
        "cuda.reset_peak_memory_stats",
        "cuda.max_memory_allocated",
    ):
        monkeypatch.setattr(f"torch.{name}", partial(ask, name))
    gpu = Device("cuda", "a GPU")
    gpu.synchronize()
    gpu.empty_cache()
    gpu.reset_peak()
    assert gpu.peak() == 7
    assert asked == [
        "cuda.synchronize",
        "cuda.empty_cache",
        "accelerator.empty_host_cache",
        "cuda.reset_peak_memory_stats",
        "cuda.max_memory_allocated",
    ]


def test_the_processor_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda: pytest.fail("there is no GPU"))
    PROCESSOR.synchronize()
    PROCESSOR.empty_cache()
    PROCESSOR.reset_peak()
    assert PROCESSOR.peak() > 0
