"""The six families that 4.57.6 does not checkpoint as layers: broken as released, and whole after `apply`.

One and the same function, `faults`, judges a model of either tree.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.verification.conftest import Runner

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


@pytest.fixture(scope="module")
def reports(released_tree: Path, repaired_tree: Path, run_on_trees: Runner) -> dict[str, Any]:
    return run_on_trees("step_script", {"released": released_tree, "repaired": repaired_tree})


def faults(report: dict[str, Any]) -> list[str]:
    """Why a model's checkpointing is not in order, in sentences; none where it is."""
    plain = [name for name, is_layer in report["layers"].items() if not is_layer]
    sentences = [f"{len(plain)} of {len(report['layers'])} blocks are no GradientCheckpointingLayer."] if plain else []
    for mode, run in report["modes"].items():
        sentences += [f"{mode}: {reason}" for reason in run["reasons"]]
        if run["saved_bytes"] >= report["saved_bytes"]:
            sentences.append(f"{mode}: As many bytes are held as without checkpointing.")
    return sentences


@pytest.mark.parametrize("case", CASES)
def test_a_repaired_model_trains_alike_and_recomputes_every_block_once(reports: dict[str, Any], case: str) -> None:
    report = reports["repaired"][case]
    assert report["error"] is None
    assert faults(report) == []
    for mode in MODES:
        run = report["modes"][mode]
        assert set(map(tuple, run["entries"].values())) == {(1, 1)}
        assert (
            run["largest_error"] == 0.0
        )  # a recompute repeats the same operations, so equal means equal in every bit
    assert report["reached"]


@pytest.mark.parametrize("case", NEVER_CHECKPOINTED)
def test_the_released_model_recomputes_nothing(reports: dict[str, Any], case: str) -> None:
    report = reports["released"][case]
    count = len(report["layers"])
    found = faults(report)
    assert found[0] == f"{count} of {count} blocks are no GradientCheckpointingLayer."
    for mode in MODES:
        recompute, held = [sentence for sentence in found if sentence.startswith(f"{mode}: ")]
        assert recompute.startswith(f"{mode}: {count} of {count} blocks are not recomputed in the backward: ")
        assert held == f"{mode}: As many bytes are held as without checkpointing."


@pytest.mark.parametrize("case", INLINE)
def test_the_released_model_recomputes_in_an_inline_branch_and_has_no_layer(
    reports: dict[str, Any], case: str
) -> None:
    report = reports["released"][case]
    count = len(report["layers"])
    assert faults(report) == [f"{count} of {count} blocks are no GradientCheckpointingLayer."]
    for mode in MODES:
        assert set(map(tuple, report["modes"][mode]["entries"].values())) == {(1, 1)}


def test_clvps_released_conditioning_encoder_loses_its_gradients_in_an_inline_branch(reports: dict[str, Any]) -> None:
    report = reports["released"]["clvp_conditioning_encoder"]
    assert faults(report)[0] == "4 of 4 blocks are no GradientCheckpointingLayer."
    for mode in MODES:  # the branch takes torch's default, which is reentrant, whatever the user chose
        run = report["modes"][mode]
        # the mel frames need no gradient, so the first reentrant checkpoint cuts off all that it holds and follows
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
    for key in ("parameters", "loss", "reached", "saved_bytes"):
        assert reports["repaired"][case][key] == reports["released"][case][key], key


@pytest.mark.parametrize("case", GENERATING)
def test_generate_with_a_cache_gives_the_tokens_of_the_release(reports: dict[str, Any], case: str) -> None:
    released, repaired = (reports[tree][case]["generated"] for tree in ("released", "repaired"))
    assert repaired == released
    assert len({token for row in released for token in row[-6:]}) > 4  # a model stuck on one token shows nothing
