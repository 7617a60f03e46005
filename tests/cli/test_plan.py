"""The command `plan`: its output and exit codes, and one sentence for each bad input."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

pytest.importorskip("torch")

from ckpt_surgery.cli.main import main
from tests.planning.test_target import config

pytestmark = pytest.mark.torch


def planned(place: Path, memory: str, *options: str) -> int:
    return main(["plan", config(place), "--tokens", "64", "--batch", "8", "--memory", memory, *options])


def test_it_says_what_to_call_and_what_else_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(tmp_path, "73.1MB", "--no-offload", "--no-changes", "--no-save") == 0
    output = capsys.readouterr()
    assert re.match(r"Fits into 69.7 MiB: [\d.]+ MiB with 2 of 3 blocks; [\d.]+ MiB without\.\n", output.out)
    assert "\nfrom ckpt_surgery import wrap_blocks\n\nwrap_blocks(model, first={'model.layers': 2})\n" in output.out
    assert "->" in output.out
    assert re.search(r"at the peak rates of H100 \(.*\), as --device names no card; ~ is", output.out)
    assert output.err == ""


def test_with_ranks_less_has_to_be_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(tmp_path, "73.1MB", "--no-offload", "--no-changes", "--no-save", "--ranks", "8", "--fsdp") == 0
    assert "wrap_blocks(model, first={'model.layers': 1})" in capsys.readouterr().out


def test_a_page_shows_the_front(tmp_path: Path) -> None:
    file = tmp_path / "plan.html"
    assert planned(tmp_path, "73.1MB", "--html", str(file)) == 0
    page = file.read_text()
    assert "A plan for LlamaForCausalLM within 69.7 MiB" in page
    assert 'class="chosen"' in page
    assert planned(tmp_path, "73.1MB", "--html", str(tmp_path / "none" / "plan.html")) == 2


def test_the_calls_are_written_as_yaml(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    options = ["--no-offload", "--no-changes", "--no-save", "--yaml", str(file)]
    assert planned(tmp_path, "73.1MB", *options) == 0
    written = yaml.safe_load(file.read_text())
    assert (written["model"], written["memory"], written["device"]) == ("LlamaForCausalLM", 73_100_000, "H100")
    assert written["calls"] == {"wrap_blocks": {"first": {"model.layers": 2}}}
    assert 0 < written["predicted"]["kept_bytes"] < written["predicted"]["peak_bytes"] <= 73_100_000
    assert written["predicted"]["extra_seconds"] > 0


def test_nothing_to_be_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(tmp_path, "1GiB") == 0
    assert "as it is, nothing has to be done." in capsys.readouterr().out


def test_the_memory_is_that_of_a_card_that_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", config(tmp_path), "--device", "RTX 4090"]) == 0
    assert capsys.readouterr().out.startswith("Fits into 20.6 GiB: ")
    assert planned(tmp_path, "73.1MB", "--no-offload", "--no-changes", "--no-save", "--device", "A100") == 0
    assert "as --device names no card" not in capsys.readouterr().out


def test_what_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(tmp_path, "1MB") == 1
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    assert re.search(
        r"does not fit into 977 KiB: at the least a step needs [\d.]+ MiB, [\d.]+ MiB more; take fewer", line
    )
    assert "The smallest common card that it fits on as it is: T4 (16 GB)" in line


def test_the_largest_size_that_fits_is_searched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config(tmp_path, max_position_embeddings=100_000)
    options = ["--tokens", "64", "--batch", "8", "--no-offload", "--no-changes", "--no-save", "--maximize", "batch"]
    assert main(["plan", str(tmp_path), "--memory", "75MB", *options]) == 0
    found = re.match(r"Largest batch: (\d+) samples of 64 tokens", capsys.readouterr().out)
    assert found is not None
    assert int(found[1]) > 8
    assert main(["plan", str(tmp_path), "--memory", "1KB", *options]) == 1
    assert "not even a step of " in capsys.readouterr().err


MODEL = "a model"
"""A placeholder for a small model in `BAD`."""
BUDGET = ("--memory", "80GB")
BAD = [
    ((MODEL,), "--memory SIZE, or the card with --device"),
    (BUDGET, "Missing argument 'MODEL'"),
    (("empty", *BUDGET), "empty/config.json: cannot be read"),
    (("meta-llama/Llama-3.1-8B", *BUDGET), "HF_HUB_OFFLINE is set; or give the path of a config.json"),
    (("remote", *BUDGET), "building its models means running it: read it first; only --trust-remote-code runs it"),
    *((((MODEL, "--memory", size)), f"memory is {size!r}: give") for size in ("80", "0GB", "nanGB")),
    *(
        (((MODEL, *BUDGET, option, number)), f"{number!r} is not a whole number from 1 up")
        for option, number in (("--tokens", "0"), ("--batch", "-1"), ("--zero", "x"))
    ),
    ((MODEL, *BUDGET, "--tokens", "65"), "64 positions, and 65 tokens were asked for: give --tokens 64 or fewer"),
    ((MODEL, *BUDGET, "--device", "abacus"), "no device is called 'abacus'"),
    ((MODEL, *BUDGET, "--ranks", "8"), "8 ranks share nothing by themselves"),
    ((MODEL, *BUDGET, "--ranks", "8", "--zero", "4"), "no sharding is called 'zero4'"),
    ((MODEL, *BUDGET, "--ranks", "8", "--zero", "3", "--fsdp"), "two ways to divide a model"),
    ((MODEL, *BUDGET, "--html", "none/plan.html"), "--html none/plan.html cannot be written to: there is no folder"),
    ((MODEL, *BUDGET, "--yaml", "empty"), "--yaml empty cannot be written to: it is a folder"),
]


@pytest.mark.parametrize(("arguments", "said"), BAD, ids=lambda value: " ".join(value) if type(value) is tuple else "")
def test_bad_input_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("empty", "remote"):
        (tmp_path / folder).mkdir()
    config(tmp_path / "remote", auto_map={"AutoModelForCausalLM": "modeling_own.Own"}, architectures=["Own"])
    named = [config(tmp_path) if each == MODEL else each for each in arguments]
    assert main(["plan", *named]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    sentence = output.err.strip().splitlines()[-1]
    assert said in sentence
    assert "error: " in sentence.lower()
    assert all(line.startswith(("Usage: ", "Try ")) for line in output.err.splitlines()[:-1] if line)


def test_what_is_said_to_make_a_plan_fit_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config(tmp_path, hidden_size=256, intermediate_size=1024)
    asked = ["plan", str(tmp_path), "--tokens", "64", "--memory", "92MB"]
    assert main(asked) == 1
    levers = re.findall(r"ith `([^`]+)` it fits: ", capsys.readouterr().err)
    assert len(levers) >= 3
    for options in levers:
        assert main([*asked, *options.split()]) == 0
