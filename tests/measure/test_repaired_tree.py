"""The six families that 4.57.6 does not checkpoint as layers: broken as released, whole after `apply`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from ckpt_surgery import apply
from tests.measure.conftest import Runner, copied_tree
from tests.measure.step_script import CLASSES, GENERATING

pytestmark = [pytest.mark.transformers4, pytest.mark.torch, pytest.mark.slow]

VERIFIED = (*CLASSES, "ClvpEncoder", "ClvpModelForConditionalGeneration")
NEVER_CHECKPOINTED = ("GPTBigCodeForCausalLM", "SwiftFormerForImageClassification")
Failed = Mapping[str, set[tuple[str, str]]]


def failed_levels(tree: Path, *classes: str) -> Failed:
    """Verify classes in a tree; return each with the modes and levels that fail."""
    command = [sys.executable, "-m", "ckpt_surgery", "verify", *classes, "--output-format", "json", "--exit-zero"]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=True)
    reports = json.loads(done.stdout)["reports"]
    return {
        report["target"]: {
            (mode["mode"], level)
            for mode in report["modes"]
            for level, outcome in mode["outcomes"].items()
            if outcome == "failed"
        }
        for report in reports
    }


@pytest.fixture(scope="module")
def released(released_tree: Path) -> Failed:
    return failed_levels(released_tree, *NEVER_CHECKPOINTED)


@pytest.fixture(scope="module")
def steps(released_tree: Path, repaired_tree: Path, run_on_trees: Runner) -> dict[str, Any]:
    return run_on_trees("step_script", {"released": released_tree, "repaired": repaired_tree})


def in_both(*levels: str) -> set[tuple[str, str]]:
    return {(mode, level) for mode in ("non_reentrant", "reentrant") for level in levels}


def test_as_released_two_families_are_never_checkpointed(released: Failed) -> None:
    for name in NEVER_CHECKPOINTED:
        assert released[name] == in_both("recompute", "cost")


def test_after_the_repair_all_holds_but_what_a_recompute_does_again(repaired_tree: Path) -> None:
    repaired = failed_levels(repaired_tree, *VERIFIED)
    assert repaired.keys() == {*VERIFIED}
    for name, failed in repaired.items():
        if name.startswith("SwiftFormer"):
            assert failed == in_both("state"), "running statistics are updated again"
        elif name.startswith("Zamba"):
            assert failed == {("reentrant", "recompute")}, "hybrid layers hold a Mamba layer, a block elsewhere"
        else:
            assert failed == set(), name


@pytest.mark.parametrize("name", CLASSES)
def test_the_repair_makes_layers_and_changes_no_loss_gradients_or_tokens(steps: dict[str, Any], name: str) -> None:
    before, after = (steps[tree][name] for tree in ("released", "repaired"))
    assert not any(before.pop("layers"))
    assert all(after.pop("layers"))
    assert after == before
    if name in GENERATING:
        assert len({token for row in after["generated"] for token in row[-6:]}) > 2  # else it shows nothing


@pytest.mark.parametrize(
    ("unsafe", "select", "new"),
    [(False, [], set()), (True, ["CKPT001"], {"run"})],
    ids=["all safe repairs", "CKPT001 without CKPT005, which safe repairs must not be"],
)
def test_a_repair_of_gpt_bigcode_breaks_no_level_that_held(
    released_tree: Path, released: Failed, tmp_path: Path, unsafe: bool, select: Collection[str], new: set[str]
) -> None:
    tree = copied_tree(released_tree, tmp_path)
    apply([tree / "transformers/models/gpt_bigcode"], unsafe=unsafe, select=select)
    broken = {
        level
        for name, failed in failed_levels(tree, "GPTBigCodeForCausalLM").items()
        for _, level in failed - released[name]
    }
    assert broken == new
