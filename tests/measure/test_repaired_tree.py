"""The six families that 4.57.6 does not checkpoint as layers: broken as released, whole after `apply`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from ckpt_surgery import apply
from tests.measure.conftest import Runner, copied_tree

pytestmark = [pytest.mark.transformers4, pytest.mark.torch, pytest.mark.slow]

MODES = ("non_reentrant", "reentrant")
NEVER_CHECKPOINTED = ("gpt_bigcode", "swiftformer")
INLINE = ("xlstm", "zamba", "zamba2", "clvp_encoder", "clvp_decoder")
CASES = (*NEVER_CHECKPOINTED, *INLINE, "clvp_conditioning_encoder")
GENERATING = ("gpt_bigcode", "xlstm", "zamba", "zamba2", "clvp_decoder")

MAMBA_INSIDE = {"non_reentrant": [1, 1], "reentrant": [1, 2]}
"""Entries in forward and backward of a Mamba layer inside a hybrid layer, itself a block elsewhere in the stack.

Non-reentrant early stop ends the outer recompute at the door of the inner layer, reentrant runs through it.
"""


INNER_INPUTS = 2 * 2 * 8 * 32 * 8
"""Bytes of what goes into the two Mamba layers inside hybrid layers: float64, tiny_six's batch, length and width."""


@pytest.fixture(scope="module")
def reports(released_tree: Path, repaired_tree: Path, run_on_trees: Runner) -> dict[str, Any]:
    return run_on_trees("step_script", {"released": released_tree, "repaired": repaired_tree})


def plain(report: dict[str, Any]) -> int:
    """Count a model's blocks that are not checkpointing layers."""
    return list(report["layers"].values()).count(False)


def faults(report: dict[str, Any], mode: str) -> list[dict[str, Any]]:
    mode_faults: list[dict[str, Any]] = report["modes"][mode]["faults"]
    return mode_faults


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_a_repaired_model_trains_alike_and_recomputes_every_block_once(
    reports: dict[str, Any], case: str, mode: str
) -> None:
    report = reports["repaired"][case]
    assert report["error"] is None
    assert report["reached"]
    assert plain(report) == 0
    assert [fault["level"] for fault in faults(report, mode)] == (["state"] if case == "swiftformer" else [])
    run = report["modes"][mode]
    assert set(map(tuple, run["entries"].values())) == {(1, 1)}
    assert run["largest_error"] == 0.0  # a recompute repeats the same operations, so equal means equal in every bit


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_a_repaired_model_keeps_what_goes_into_and_out_of_its_blocks(
    reports: dict[str, Any], case: str, mode: str
) -> None:
    run = reports["repaired"][case]["modes"][mode]
    inner = INNER_INPUTS if case.startswith("zamba") and mode == "non_reentrant" else 0
    assert run["kept_bytes"] <= run["best_kept_bytes"] + inner


@pytest.mark.parametrize("mode", MODES)
def test_swiftformers_recompute_updates_running_statistics_again(reports: dict[str, Any], mode: str) -> None:
    (fault,) = faults(reports["repaired"]["swiftformer"], mode)
    assert fault["level"] == "state"
    assert len(fault["subjects"]) == 27
    kinds = {name.rpartition(".")[2] for name in fault["subjects"]}
    assert kinds == {"running_mean", "running_var", "num_batches_tracked"}
    assert all(name.startswith("swiftformer.encoder.network.") for name in fault["subjects"])
    assert "27 of 45" in fault["seen"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", NEVER_CHECKPOINTED)
def test_the_released_model_recomputes_nothing_and_saves_nothing(
    reports: dict[str, Any], case: str, mode: str
) -> None:
    report = reports["released"][case]
    assert plain(report) == len(report["layers"])
    recompute, cost = faults(report, mode)
    assert (recompute["level"], recompute["seen"]) == ("recompute", "none")
    assert recompute["subjects"] == list(report["layers"])
    assert cost["level"] == "cost"
    assert report["modes"][mode]["kept_bytes"] == report["kept_bytes"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", INLINE)
def test_the_released_model_recomputes_in_an_inline_branch_without_layers(
    reports: dict[str, Any], case: str, mode: str
) -> None:
    report = reports["released"][case]
    assert plain(report) == len(report["layers"])
    assert faults(report, mode) == []
    assert set(map(tuple, report["modes"][mode]["entries"].values())) == {(1, 1)}


def test_clvps_released_encoder_loses_its_gradients_in_an_inline_branch(reports: dict[str, Any]) -> None:
    report = reports["released"]["clvp_conditioning_encoder"]
    assert plain(report) == 4
    for mode in MODES:  # the branch takes torch's default, which is reentrant, whatever the user chose
        run = report["modes"][mode]
        # the mel frames need no gradient, so the first reentrant checkpoint cuts off all that it holds and follows
        assert [fault["level"] for fault in faults(report, mode)] == ["recompute", "set"]
        assert len(run["lost"]) == 22
        assert all(name.startswith("clvp.conditioning_encoder.") for name in run["lost"])
        entries = run["entries"]
        assert {n: e for n, e in entries.items() if e != [1, 1]} == {
            f"clvp.conditioning_encoder.mel_attn_blocks.{i}": [1, 0] for i in range(2)
        }
    assert report["modes"]["reentrant"] == report["modes"]["non_reentrant"]


@pytest.mark.parametrize("case", CASES)
def test_only_the_hybrid_layers_hold_another_checkpointing_layer(reports: dict[str, Any], case: str) -> None:
    for mode in MODES:
        nested = reports["repaired"][case]["modes"][mode]["nested"]
        assert {name.rpartition(".")[2] for name in nested} == ({"mamba_decoder"} if "zamba" in case else set())
        assert all(entries == MAMBA_INSIDE[mode] for entries in nested.values())
        assert not reports["released"][case]["modes"][mode]["nested"]


@pytest.mark.parametrize("case", CASES)
def test_the_repair_changes_no_loss_and_no_set_of_gradients(reports: dict[str, Any], case: str) -> None:
    for key in ("parameters", "loss", "reached", "kept_bytes"):
        assert reports["repaired"][case][key] == reports["released"][case][key], key


@pytest.mark.parametrize("case", GENERATING)
def test_generate_with_a_cache_gives_the_tokens_of_the_release(reports: dict[str, Any], case: str) -> None:
    released, repaired = (reports[tree][case]["generated"] for tree in ("released", "repaired"))
    assert repaired == released
    assert len({token for row in released for token in row[-6:]}) > 4  # a model stuck on one token shows nothing


def failed_levels(tree: Path) -> set[tuple[str, str, str]]:
    """Verify GPTBigCode in a tree; return every class, mode and level that fails."""
    command = [sys.executable, "-m", "ckpt_surgery", "verify", "gpt_bigcode", "--output-format", "json", "--exit-zero"]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=True)
    reports = json.loads(done.stdout)["reports"]
    assert len(reports) == 4
    return {
        (report["target"], mode["mode"], level)
        for report in reports
        for mode in report["modes"]
        for level, outcome in mode["outcomes"].items()
        if outcome == "failed"
    }


@pytest.fixture(scope="module")
def failed_as_released(released_tree: Path) -> set[tuple[str, str, str]]:
    return failed_levels(released_tree)


@pytest.mark.parametrize(
    ("unsafe", "select", "new"),
    [(False, [], set()), (True, [], set()), (True, ["CKPT001"], {"run"})],
    ids=["all safe repairs", "all repairs", "CKPT001 without CKPT005, which safe repairs must not be"],
)
def test_a_repair_of_gpt_bigcode_breaks_no_level_that_held(
    released_tree: Path,
    failed_as_released: set[tuple[str, str, str]],
    tmp_path: Path,
    unsafe: bool,
    select: Collection[str],
    new: set[str],
) -> None:
    tree = copied_tree(released_tree, tmp_path)
    apply([tree / "transformers/models/gpt_bigcode"], unsafe=unsafe, select=select)
    assert {level for _, _, level in failed_levels(tree) - failed_as_released} == new
