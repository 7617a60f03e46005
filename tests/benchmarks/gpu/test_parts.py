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

from benchmarks.gpu.parts import PARTS, Part, Result, State
from benchmarks.survey import ROOT

pytestmark = pytest.mark.torch

STEPS = ("offload", "policies", "check_cost")
"""The parts that run here with toy sizes."""


class Parsed(Exception):
    """The parsed options of a command, raised instead of running it."""


@pytest.mark.parametrize("part", [part for part in PARTS if part.name != "tests"], ids=lambda part: part.name)
def test_its_command_is_understood(part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parse_args = argparse.ArgumentParser.parse_args

    def parse(parser: argparse.ArgumentParser, arguments: Any = None) -> None:
        raise Parsed(parse_args(parser, arguments))

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    for dry in (False, True):
        command = part.command(tmp_path / "figures.json", dry=dry)
        with pytest.raises(Parsed) as parsed:
            importlib.import_module(part.arguments[1]).main(command[1 + len(part.arguments) :])
        (options,) = parsed.value.args
        assert options.out == tmp_path / "figures.json"
        assert options.toy is dry


@pytest.mark.parametrize("part", [part for part in PARTS if part.name in STEPS], ids=lambda part: part.name)
def test_the_steps_run_through_with_toy_sizes(part: Part, tmp_path: Path) -> None:
    file = tmp_path / "part.json"
    command = part.command(file, dry=True)[1 + len(part.arguments) :]
    assert importlib.import_module(part.arguments[1]).main(command) in (0, 1), "toy sizes may miss targets"
    result = Result.of(part, json.loads(file.read_text(encoding="utf-8")) | {"state": State.ENDED})
    assert result.ran
    assert all(figure["values"] for figure in result.figures.values())


@pytest.mark.slow
def test_the_tests_marked_gpu_pass_on_the_processor(tmp_path: Path) -> None:
    file = tmp_path / "tests.json"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run(PARTS[0].command(file, dry=True), cwd=ROOT, env=environment, capture_output=True, check=True)
    content = json.loads(file.read_text(encoding="utf-8"))
    assert content["failed"] == []
    assert content["figures"]["tests passed"]["values"][0] >= 40
