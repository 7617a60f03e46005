"""If the next release renames what `verify` looks for, nothing that was broken becomes ok."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from ckpt_surgery.model_patches.release_names import (
    CACHE_ARGUMENT,
    CACHE_SWITCH,
    CLAIM,
    FLAG,
    FUNCTION,
    INNER_SWITCH,
    LAYER_CLASS,
    SWITCH_OFF,
    SWITCH_ON,
    SWITCH_OPTIONS,
)

pytestmark = [pytest.mark.torch, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
BROKEN = {"ImageGPTModel": "state", "ClvpDecoder": "recompute", "Gemma4TextModel": "values"}
"""Classes that checkpoint wrongly, and a level that fails in reentrant mode."""
LOOKED_FOR = (
    *(
        CACHE_ARGUMENT[1:],
        (CACHE_SWITCH,),
        SWITCH_ON,
        SWITCH_OFF,
        SWITCH_OPTIONS,
        (INNER_SWITCH,),
        (FLAG,),
        (FUNCTION,),
    ),
    *((CLAIM,), (LAYER_CLASS,), ("get_seq_length",), ("DynamicCache",), ("is_encoder_decoder",)),
)
"""The names that a verdict depends on, by role. "cache" has too many meanings to be replaced."""
NAMES = ["|".join(role) for role in LOOKED_FOR]


@cache
def all_outcomes() -> dict[str, dict[str, str | None]]:
    """Run the broken classes once for each renamed name; return the outcomes by that name."""
    broken = ",".join(f"{kind}={level}" for kind, level in BROKEN.items())
    command = [sys.executable, "-m", "tests.measure.renamed_script", broken, *NAMES]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=True)
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    return dict(zip(["", *NAMES], lines, strict=True))


def test_what_is_broken_fails() -> None:
    assert all_outcomes()[""] == dict.fromkeys(BROKEN, "failed")


@pytest.mark.parametrize("name", NAMES)
def test_nothing_that_was_broken_is_ok_under_another_name(name: str) -> None:
    assert "ok" not in all_outcomes()[name].values()
