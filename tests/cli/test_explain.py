"""The command `explain`: its output and exit codes, and one sentence for each bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from ckpt_surgery.cli.main import main
from ckpt_surgery.text import size
from tests.planning.test_target import config

pytestmark = pytest.mark.torch
EXPLAIN = ["explain", "--tokens", "32"]


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the message about unusable arguments: one line, with exit code 2."""
    assert main(["explain", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.strip().splitlines()
    return line.removeprefix("ckpt_surgery: error: ")


@pytest.mark.both
def test_it_says_what_is_kept_with_and_without_checkpointing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*EXPLAIN, config(tmp_path), "--batch", "2"]) == 0
    output = capsys.readouterr()
    assert output.out.startswith("Fits on T4 (16 GB) as it is, the smallest common card: ")
    assert "\nLlamaForCausalLM: 2 samples of 32 tokens, bf16, attention: sdpa, 3 blocks\n" in output.out
    assert "of the peak: gradients and the state of the optimizer; adapters" in output.out
    for heading in ("checkpointing off", "checkpointing on", "parameters", "optimizer (adamw)", "peak in"):
        assert heading in output.out
    assert "model.layers.*.mlp" in output.out
    assert output.err == ""


def test_the_first_line_says_what_the_options_it_names_would_give(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = config(tmp_path, hidden_size=512, intermediate_size=2048)

    def answered(*options: str) -> tuple[str, str]:
        file = tmp_path / "told.json"
        assert main([*EXPLAIN, large, *options, "--json", str(file)]) == 0
        lines = capsys.readouterr().out.partition("\n\n")[0]
        return " ".join(lines.split()), size(json.loads(file.read_text())["checkpointing_on"]["peak_bytes"])

    whole, _ = answered()
    adapted, with_lora = answered("--lora", "16")
    _, packed = answered("--lora", "16", "--load-in-4bit")
    assert "Most effect: LoRA (`--lora 16`), " in whole
    assert f" less: {with_lora} with checkpointing; checkpointing alone saves " in whole
    assert "Most effect: frozen weights in 4 bits (`--load-in-4bit`), " in adapted
    assert f" less: {packed} with checkpointing; checkpointing alone saves " in adapted


def test_the_requested_steps_are_shown_and_written_as_json_and_as_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--checkpointing", "on", "--optimizer", "none", "--long-context"]
    assert main([*EXPLAIN, config(tmp_path), *options]) == 0
    output = capsys.readouterr().out
    assert "checkpointing off" not in output
    assert ", as with long_context\n" in output
    assert "optimizer (none)" in output
    file = tmp_path / "told.json"
    page = tmp_path / "told.html"
    assert main([*EXPLAIN, config(tmp_path), "--json", str(file), "--html", str(page)]) == 0
    told = json.loads(file.read_text())
    assert told["checkpointing_on"]["checkpointed"] == 3
    assert told["checkpointing_off"]["kept_bytes"] > told["checkpointing_on"]["kept_bytes"]
    assert "checkpointing off" in page.read_text()
    assert "checkpointing on" in page.read_text()


def test_one_rank_of_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "told.json"
    options = [config(tmp_path), "--checkpointing", "on", "--json", str(file)]
    assert main([*EXPLAIN, *options]) == 0
    alone = json.loads(file.read_text())["checkpointing_on"]
    assert main([*EXPLAIN, *options, "--ranks", "4", "--fsdp", "--device", "H100"]) == 0
    assert ", one of 4 ranks (fsdp)" in (output := capsys.readouterr().out)
    assert "least time (H100)" in output
    assert "workspace of cuBLAS" in output
    rank = json.loads(file.read_text())["checkpointing_on"]
    for name in ("parameter_bytes", "optimizer_bytes"):
        assert rank[name] == pytest.approx(alone[name] / 4, rel=0.02)
    assert rank["kept_bytes"] == alone["kept_bytes"]


def test_offload_and_long_context_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, name = tmp_path / "told.json", config(tmp_path, num_hidden_layers=8, vocab_size=5000)

    def told(*options: str) -> Any:
        assert main([*EXPLAIN, name, "--checkpointing", "on", "--json", str(file), *options]) == 0
        return json.loads(file.read_text())["checkpointing_on"]

    plain, offloaded, long, host = told(), told("--offload"), told("--long-context"), told("--long-context", "--host")
    # the last block's input stays, and two are on their way
    assert plain["kept_bytes"] - offloaded["kept_bytes"] == 5 * 32 * 64 * 2
    assert long["kept_bytes"] < offloaded["kept_bytes"] / 2
    assert host["peak_bytes"] < long["peak_bytes"]
    output = capsys.readouterr().out
    for said in ("block inputs in host memory", "as with long_context", "as with long_context(host=True)"):
        assert f", {said}\n" in output


def flat() -> Any:
    return nn.Linear(8, 8), [torch.zeros(2, 8)]


def test_a_model_without_blocks_is_explained_without_checkpointing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", f"{__name__}:flat"]) == 0
    output = capsys.readouterr()
    assert "checkpointing on" not in output.out
    assert "with checkpointing off alone: " in output.err


def test_bad_input_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert "config.json: cannot be read" in refusal(capsys, str(tmp_path / "empty"))
    assert "did you mean GPT2LMHeadModel" in refusal(capsys, "GPT2LMHeadMode")
    assert "HF_HUB_OFFLINE is set; or give the path of a config.json" in refusal(capsys, "meta-llama/Llama-3.1-8B")
    assert "64 positions, and 65 tokens were asked for" in refusal(capsys, config(tmp_path), "--tokens", "65")
    assert "there is no module nowhere" in refusal(capsys, "nowhere:factory")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--device", "abacus"], "no device is called 'abacus': give one of T4"),
        (["--ranks", "2"], "2 ranks share nothing by themselves"),
        (["--save", "atention"], "save names 'atention': give attention, matmul"),
        (["--save", "attention", "--checkpointing", "off"], "--save is for checkpointed steps"),
        (["--offload", "--checkpointing", "off"], "--offload is for checkpointed steps"),
        (["--long-context", "--save", "attention"], "--long-context decides what is kept and where: leave --save out"),
        (["--host"], "--host is for --long-context"),
        (["--html", "none/told.html"], "--html none/told.html cannot be written to"),
    ],
    ids=str,
)
def test_options_that_do_not_go_together_are_refused_before_the_work(
    capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert said in refusal(capsys, "no_such_model", *options)


def test_layers_of_4_bits_cannot_be_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = "--load-in-4bit freezes the linear layers: give --lora RANK too, or leave it out"
    assert refusal(capsys, config(tmp_path), "--load-in-4bit") == said
    assert main(["plan", config(tmp_path), "--memory", "1GB", "--load-in-4bit"]) == 2
    assert said in capsys.readouterr().err


def reads_values() -> Any:
    return ReadsValues(), [torch.zeros(2**26)]


class ReadsValues(nn.Linear):
    """A layer whose forward branches on values computed from its weights."""

    def __init__(self) -> None:
        super().__init__(2**26, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weighted = x * self.weight
        return weighted[weighted > 0]


def test_a_line_that_reads_values_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, f"{__name__}:reads_values")
    assert "reads values that depend on weights (test_explain.py, line" in said
    assert "`return weighted[weighted > 0]`" in said
    assert "`ckpt_surgery verify` measures" in said


STACK = """\
import torch
from torch import nn
from ckpt_surgery import wrap_blocks
from tests.zoo.tiny_models import llama

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, hidden_states):
        return torch.tanh(self.linear(hidden_states))

class Stack(nn.Sequential):
    def forward(self, hidden_states):
        return super().forward(hidden_states).sum()

def make():
    return Stack(*(Block() for _ in range(4))), [torch.ones(3, 8)]

def wrapped():
    model, inputs = make()
    wrap_blocks(model)
    return model, inputs

def on():
    model = llama(2)
    model.gradient_checkpointing_enable()
    return model
"""


def test_a_factorys_own_inputs_are_not_counted_as_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(STACK)
    name = f"{tmp_path / 'mine.py'}:make"
    assert main(["explain", name]) == 0
    assert "Stack: its own inputs, bf16" in capsys.readouterr().out
    assert "--batch is for inputs that are made here" in refusal(capsys, name, "--batch", "8")
    assert main(["plan", name, "--memory", "8GB", "--tokens", "9"]) == 2
    assert "--tokens is for inputs" in capsys.readouterr().err


@pytest.mark.parametrize("factory", ["wrapped", "on"])
def test_a_model_that_a_factory_checkpoints_is_explained_as_it_is(
    factory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(STACK)
    name = f"{tmp_path / 'mine.py'}:{factory}"
    assert main(["explain", name]) == 0
    output = capsys.readouterr()
    assert (
        output.err == f"ckpt_surgery: {name} returns a model that is checkpointed already: it is explained as it is\n"
    )
    assert "without checkpointing" not in output.out
    assert "checkpointing off" not in output.out
    assert "checkpointed already" in refusal(capsys, name, "--save", "matmul")
