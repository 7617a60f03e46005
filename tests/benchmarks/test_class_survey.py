"""The survey of classes: processes that take too much are ended, and none is begun too late."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.class_survey import TOO_LARGE, rows_of, survey


def wasteful(name: str) -> Mapping[str, Any]:
    """Takes 64 MiB more, and stays."""
    filled = bytearray(os.urandom(2**26))
    time.sleep(30)
    return {"bytes": len(filled)}


def test_a_process_that_takes_too_much_memory_is_ended(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    start = time.monotonic()
    survey(["one"], file, wasteful, jobs=1, seconds=60, most_bytes=2**20)
    assert [row["problem"] for row in rows_of(file)] == [TOO_LARGE]
    assert time.monotonic() - start < 30


def test_no_class_is_begun_after_the_time(tmp_path: Path) -> None:
    survey(["one"], tmp_path / "rows.jsonl", wasteful, jobs=1, seconds=60, in_all=-1)
    assert rows_of(tmp_path / "rows.jsonl") == []
