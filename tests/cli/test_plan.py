"""The command `plan`: what it prints, its exit codes, and one sentence for each bad input."""

from __future__ import annotations

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
    assert planned(tmp_path, "3.9MB", "--no-offload", "--no-changes", "--no-save") == 0
    output = capsys.readouterr()
    assert "LlamaForCausalLM within 3.7 MiB: a step needs" in output.out
    assert "    wrap_blocks(model, first={'model.layers': 2})" in output.out
    assert "->" in output.out
    assert "H100" in output.out
    assert output.err == ""


def test_with_ranks_less_has_to_be_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(tmp_path, "3.9MB", "--no-offload", "--no-changes", "--no-save", "--ranks", "8", "--fsdp") == 0
    assert "wrap_blocks(model, first={'model.layers': 1})" in capsys.readouterr().out


def test_a_page_shows_the_front(tmp_path: Path) -> None:
    file = tmp_path / "plan.html"
    assert planned(tmp_path, "3.9MB", "--html", str(file)) == 0
    page = file.read_text()
    assert "A plan for LlamaForCausalLM within 3.7 MiB" in page
    assert 'class="chosen"' in page
    assert planned(tmp_path, "3.9MB", "--html", str(tmp_path / "none" / "plan.html")) == 2


def test_the_calls_are_written_as_yaml(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    options = ["--no-offload", "--no-changes", "--no-save", "--yaml", str(file)]
    assert planned(tmp_path, "3.9MB", *options) == 0
    written = yaml.safe_load(file.read_text())
    assert (written["model"], written["memory"], written["device"]) == ("LlamaForCausalLM", 3_900_000, "H100")
    assert written["calls"] == {"wrap_blocks": {"first": {"model.layers": 2}}}
    assert 0 < written["predicted"]["kept_bytes"] < written["predicted"]["peak_bytes"] <= 3_900_000
    assert written["predicted"]["extra_seconds"] > 0


def test_nothing_to_be_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(tmp_path, "1GiB") == 0
    assert "as it is: nothing has to be done." in capsys.readouterr().out


def test_what_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(tmp_path, "1MB") == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert "does not fit into 977 KiB: at the least a step needs" in output.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--memory", "80"], "memory is '80'"),
        (["--memory", "80GB", "--device", "abacus"], "no device is called 'abacus'"),
        (["--memory", "80GB", "--device", "none.toml"], "none.toml cannot be read"),
        (["--memory", "80GB", "--optimizer", "adam"], "'adam' is not one of none, sgd"),
        (["--memory", "80GB", "--dtype", "int4"], "'int4' is not one of"),
        (["--memory", "80GB", "--ranks", "8"], "8 ranks share nothing by themselves"),
        (["--memory", "80GB", "--ranks", "8", "--zero", "4"], "no sharding is called 'zero4'"),
        (["--memory", "80GB", "--ranks", "8", "--zero", "3", "--fsdp"], "two ways to divide a model"),
        (["--memory", "80GB", "--fsdp"], "give 2 ranks or more"),
        ([], "Missing option"),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert main(["plan", config(tmp_path), *options]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert said in output.err
    assert "Traceback" not in output.err
