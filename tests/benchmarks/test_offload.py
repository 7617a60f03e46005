"""The benchmark of activation offload: what leaves is counted, each target can be missed, the json has it all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from benchmarks import offload
from benchmarks.device_steps import Steps
from benchmarks.offload import LONG, NONE, OURS, SAVE_ON_CPU, THEIRS, WAYS, costs, main, off_device, on_cpu
from ckpt_surgery.runtime.offload.offloader import Offloader

pytestmark = pytest.mark.torch

TINY = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "SMALL", TINY)
    monkeypatch.setattr(offload, "VOCABULARY", 8)
    monkeypatch.setattr(offload, "SHORT", 32)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def verdicts(tokens: int = LONG, **changed: Any) -> dict[str, str]:
    ways = dict.fromkeys(WAYS, Steps((2.0, 1.0, 3.0), 100, 0.5, 7.0))
    ways[OURS] = Steps(**{"seconds": (2.06,), "peak": 100, "loss": 0.5, "norm": 7.0, **changed})
    return {figure.name: figure.verdict for figure in costs(tokens, ways) if figure.verdict}


def test_of_24_layers_all_but_the_last_input_leave() -> None:
    by_name = {figure.name: figure for figure in on_cpu(off_device(24))}
    assert by_name["CPU: bytes off the device"].median * 10**9 == 23 * 32 * 16 * 4
    assert {figure.verdict for figure in by_name.values()} == {"", "ok"}


def test_few_layers_miss_the_share() -> None:
    assert [figure.name for figure in on_cpu(off_device(8)) if figure.verdict == "missed"] == [
        "CPU: off the device / all"
    ]


def test_wrong_gradients_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Offloader, "_fetch", lambda self, ticket: torch.zeros(ticket.bytes // 4))
    missed = [figure.name for figure in on_cpu(off_device(24)) if figure.verdict == "missed"]
    assert missed == ["CPU: gradients that are those without offload, to the bit"]


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
    one = Steps((1.0,), 1, 1.0, 1.0)
    fitted = [figure.name for figure in costs(LONG, {NONE: None, THEIRS: None, SAVE_ON_CPU: None, OURS: one})]
    assert fitted == ["32K: a step, wrap_blocks", "32K: peak, wrap_blocks"]
    *_, last = costs(LONG, {NONE: one, THEIRS: None, OURS: None})
    assert (last.name, last.verdict) == ("32K: wrap_blocks fits", "missed")
    assert not any("fits" in figure.name for figure in costs(LONG, {NONE: one})), "ours was not tried yet"


def test_the_forward_inside_save_on_cpu_saves_the_inputs_of_blocks_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pinned store of a GPU is stood in for by torch's own `save_on_cpu` without pinning, and counted."""
    moved: list[torch.Size] = []

    def save_on_cpu(**options: Any) -> Any:
        assert options == {"pin_memory": True, "device_type": "cpu"}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            moved.append(tensor.shape)
            return tensor.clone()

        return torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed)

    monkeypatch.setattr("torch.autograd.graph.save_on_cpu", save_on_cpu)
    model = offload.llama(3, TINY)
    ids = offload.token_ids(32, "cpu")
    with offload.enabled(NONE, model):
        expected = offload.gradients(model, ids)
    with offload.enabled(SAVE_ON_CPU, model), offload._saved_on_cpu(model):
        made = offload.gradients(model, ids)
    assert moved.count(torch.Size((1, 32, 16))) >= 3
    assert all(torch.equal(made[name], gradient) for name, gradient in expected.items())
    assert "forward" not in vars(model)


def test_the_json_says_what_was_measured_and_a_line_what_was_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
