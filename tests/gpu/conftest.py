"""The device of tests marked `gpu`: the first CUDA GPU, or the processor in a dry run."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

pytest.importorskip("torch")

import torch


@pytest.fixture
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make two runs of a model on the device give the same bits, so that bit equality means something.

    Memory that nobody has set stays so, as in a training: attention saves some, and no check may look at it.
    """
    monkeypatch.setitem(os.environ, "CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setattr("torch.utils.deterministic.fill_uninitialized_memory", False)
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
