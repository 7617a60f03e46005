"""The code of the parts of `make gpu`, run on the processor with toy sizes; their commands parse."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.gpu.page import bars, section, write_page
from benchmarks.gpu.parts import PARTS, Part, Result, State
from benchmarks.gpu_steps import TOPICS, figures
from benchmarks.survey import ROOT
from tests.benchmarks.test_gpu_steps import kept

pytestmark = pytest.mark.torch

STEPS = ("offload", "policies", "check_cost", "ways")
"""The parts that run here with toy sizes."""


class Parsed(Exception):
    """The parsed options of a command, raised instead of running it."""


@pytest.mark.parametrize("part", [part for part in PARTS if part.name != "tests"], ids=lambda part: part.name)
def test_its_command_is_understood(part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parse_args = argparse.ArgumentParser.parse_args

    def parse(parser: argparse.ArgumentParser, arguments: Any = None) -> None:
        raise Parsed(parse_args(parser, arguments))

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    out = tmp_path / "figures.json"
    for dry in (False, True):
        with pytest.raises(Parsed) as parsed:
            importlib.import_module(part.arguments[1]).main(part.command(out, dry=dry)[1 + len(part.arguments) :])
        (options,) = parsed.value.args
        assert options.out == out
        assert getattr(options, "toy", False) is dry
        assert getattr(options, "resume", False) is part.resumes


def test_the_steps_run_through_with_toy_sizes(tmp_path: Path) -> None:
    results = []
    for part in (part for part in PARTS if part.name in STEPS):
        file = tmp_path / f"{part.name}.json"
        command = part.command(file, dry=True)[1 + len(part.arguments) :]
        assert importlib.import_module(part.arguments[1]).main(command) in (0, 1), "toy sizes may miss targets"
        content = json.loads(file.read_text(encoding="utf-8")) | {"state": State.ENDED}
        results.append(Result.of(part, content))
        assert results[-1].ran
        assert all(figure["values"] for figure in results[-1].figures.values())
    write_page(tmp_path / "gpu.md", results, {"device": "the processor"}, dry=True)
    assert "none of them is of a GPU" in (tmp_path / "gpu.md").read_text(encoding="utf-8")
    assert {name for name in STEPS if (tmp_path / "gpu" / f"{name}.svg").exists()} == {*STEPS}


@pytest.mark.slow
def test_the_tests_marked_gpu_pass_on_the_processor(tmp_path: Path) -> None:
    file = tmp_path / "tests.json"
    part = PARTS[0]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run(part.command(file, dry=True), cwd=ROOT, env=environment, capture_output=True, check=True)
    content = json.loads(file.read_text(encoding="utf-8"))
    assert content["failed"] == []
    assert content["figures"]["tests passed"]["values"][0] >= 40


@pytest.mark.parametrize("name", ["offload", "policies", "check_cost", "ways", "offload_128k", "policies_128k"])
def test_the_bars_of_a_real_run_are_those_of_its_figures(name: str) -> None:
    # The bars are given by the starts of names: each start must match a figure that the benchmark makes.
    part = next(part for part in PARTS if part.name == name)
    topic, *_ = part.real
    lengths = [int(word) for word in part.real[2:]] or TOPICS[topic].tokens
    made = figures(TOPICS[topic], lengths, kept(topic, lengths))
    plain = {each.name: {"values": [1.0], "unit": each.unit, "target": "", "verdict": ""} for each in made}
    drawn = bars(Result(part, figures=plain))
    assert len(drawn["s"]) == len(drawn["GB"]) == len(lengths) * len(TOPICS[topic].ways)


def test_a_way_without_room_is_reported_on_the_page() -> None:
    part = next(part for part in PARTS if part.name == "policies")
    content = {"state": State.ENDED, "figures": {}, "no_room": ["8192 tokens, no checkpointing"]}
    result = Result.of(part, content)
    assert result.ok, "a device with less memory is no fault"
    assert "The device has too little memory for: 8192 tokens, no checkpointing." in section(result, "")
