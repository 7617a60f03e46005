"""The benchmark of activation offload: what leaves is counted, each target can be missed, the json has it all."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from benchmarks import offload
from benchmarks.figures import Target
from benchmarks.offload import LONG, NONE, OURS, THEIRS, Cost, costs, in_files, main, off_device
from ckpt_surgery.runtime import disk_transport
from ckpt_surgery.runtime.offload import Offloader

pytestmark = pytest.mark.torch

TINY = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "SMALL", TINY)
    monkeypatch.setattr(offload, "VOCABULARY", 8)
    monkeypatch.setattr(offload, "SHORT", 32)
    monkeypatch.setattr(offload, "SEQUENCES", 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def verdicts(tokens: int = LONG, **changed: Any) -> dict[str, str]:
    ways = dict.fromkeys((NONE, THEIRS, OURS), Cost((2.0, 1.0, 3.0), 100, 0.5, 7.0))
    ways[OURS] = Cost(**{"seconds": (2.06,), "peak": 100, "loss": 0.5, "norm": 7.0, **changed})
    return {figure.name: figure.verdict for figure in costs(tokens, ways) if figure.verdict}


def test_of_24_layers_all_but_the_last_input_leave() -> None:
    by_name = {figure.name: figure for figure in off_device(24)}
    assert by_name["CPU: bytes off the device"].median * 10**9 == 23 * 32 * 16 * 4
    assert {figure.verdict for figure in by_name.values()} == {"", "ok"}


def test_few_layers_miss_the_share() -> None:
    assert [figure.name for figure in off_device(8) if figure.verdict == "missed"] == ["CPU: off the device / all"]


def test_wrong_gradients_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Offloader, "_fetch", lambda self, ticket: torch.zeros(ticket.bytes // 4))
    missed = [figure.name for figure in off_device(24) if figure.verdict == "missed"]
    assert missed == ["CPU: gradients that are those without offload, to the bit"]


def test_files_hold_what_leaves_and_slow_ones_miss_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(target: torch.Tensor, source: torch.Tensor) -> None:
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            target.copy_(source)

    monkeypatch.setattr(disk_transport, "_copy", late)
    by_name = {figure.name: figure for figure in in_files(3, 2)}
    assert by_name["files: written in a step"].median * 10**9 == 2 * (2 * 32 * 16 * 4)
    assert len(by_name["files: a step, files"].values) == 2
    assert {name: figure.verdict for name, figure in by_name.items() if figure.verdict} == {
        "files: copies that a step waited for / all": "missed",
        "files: processor seconds, files / no offload": "missed",
    }


def test_every_target_of_a_long_sequence_can_be_missed() -> None:
    kept = verdicts()
    assert set(kept.values()) == {"ok"}
    missing: dict[str, dict[str, Any]] = {
        "32K: a step, wrap_blocks / no offload": {"seconds": (2.07,)},
        "32K: peak, wrap_blocks / transformers": {"peak": 101},
        "32K: loss, wrap_blocks / no offload - 1": {"loss": 0.4},
        "32K: gradient norm, wrap_blocks / no offload - 1": {"norm": 7.1},
    }
    for name, changed in missing.items():
        assert verdicts(**changed) == {**kept, name: "missed"}


def test_a_short_sequence_has_no_target_of_time() -> None:
    assert "8K: a step, wrap_blocks / no offload" not in verdicts(8 * 1024, seconds=(9.0,))


def test_what_did_not_fit_has_no_figures_and_ours_has_to() -> None:
    one = Cost((1.0,), 1, 1.0, 1.0)
    fitted = [figure.name for figure in costs(LONG, {NONE: None, THEIRS: None, OURS: one})]
    assert fitted == ["32K: a step, wrap_blocks", "32K: peak, wrap_blocks"]
    *_, last = costs(LONG, {NONE: one, THEIRS: None, OURS: None})
    assert (last.name, last.verdict) == ("32K: wrap_blocks fits", "missed")


def test_the_json_says_what_was_measured_and_a_line_what_was_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FEW", "NEAR"):
        monkeypatch.setattr(offload, name, Target(100.0))  # of steps as short as these, time says nothing
    target = tmp_path / "new" / "offload.json"
    assert main(["--out", str(target)]) == 0
    document = json.loads(target.read_text(encoding="utf-8"))
    assert document["device"] == ""
    assert document["figures"]["CPU: tensors moved"]["values"] == [23.0]
    assert "torch sees no CUDA device here" in capsys.readouterr().out


def test_a_missed_target_and_a_file_that_cannot_be_written_show_in_the_code(tmp_path: Path) -> None:
    assert main(["--layers", "4", "--out", str(tmp_path / "offload.json")]) == 1
    (tmp_path / "file").touch()
    assert main(["--layers", "4", "--out", str(tmp_path / "file" / "offload.json")]) == 2
