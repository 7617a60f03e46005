"""Measurements are kept as they are made, and failures are reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from benchmarks.device import PROCESSOR
from benchmarks.figures import Figure
from benchmarks.progress import Kept, Progress, lacks_room
from ckpt_surgery import SurgeryError

pytestmark = pytest.mark.torch


def figures(kept: Kept) -> list[Figure]:
    return [Figure(name, (value,), "s") for name, value in kept.items() if value is not None]


def progress(file: Path) -> Progress:
    return Progress("own", file, figures, PROCESSOR)


def no_room() -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


def fails() -> Any:
    raise ValueError("what it is")


def content(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def test_each_measurement_is_in_the_json_before_the_next_is_made(tmp_path: Path) -> None:
    file = tmp_path / "new" / "own.json"
    measured = progress(file)

    def second() -> float:
        assert list(content(file)["figures"]) == ["one"]
        assert content(file)["finished"] is False
        return 2.0

    measured.measure("one", lambda: 1.0)
    measured.measure("two", second)
    assert list(content(file)["figures"]) == ["one", "two"]
    assert json.loads(measured.text())["finished"] is True


def test_what_has_no_room_or_fails_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    file = tmp_path / "own.json"
    measured = progress(file)
    assert measured.measure("large", no_room) is None
    assert measured.measure("wrong", fails) is None
    assert measured.measure("fine", lambda: 1.0) == 1.0
    assert content(file)["no_room"] == ["large"]
    assert content(file)["errors"] == {"wrong": "ValueError: what it is"}
    assert list(content(file)["figures"]) == ["fine"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("out of memory"), False),
    ],
    ids=["torch's own", "pinned memory", "a library", "another error of CUDA", "another error"],
)
def test_which_errors_say_that_there_is_no_room(error: Exception, expected: bool) -> None:
    assert lacks_room(error) is expected
    told = SurgeryError("the recompute failed where its forward did not")
    told.__cause__ = error
    assert lacks_room(told) is expected
